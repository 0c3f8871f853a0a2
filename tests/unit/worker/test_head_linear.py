"""Layers of each head by itself have the bits of one layer for each."""

import pytest
import torch

from worker_svc.layers.head_linear import HeadLinear
from worker_svc.layers.packed_linear import PackedLinear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sizes", [(16, 40), (512, 128), (7, 264)], ids=str)
def test_bits_are_those_of_a_layer_for_each_head(
    dtype: torch.dtype, sizes: tuple[int, int]
) -> None:
    out_features, in_features = sizes
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    weight = random(3, out_features, in_features)
    # Parts of wider rows, as queries and what follows their latents are.
    x = random(5, 3, in_features + 24)[..., 8:-16]
    wide = torch.full((5, 3, out_features + 8), 7.0, dtype=dtype)
    out = wide[..., :out_features]
    assert HeadLinear(weight)(x, out) is out
    for head in range(3):
        expected = PackedLinear(weight[head], None)(x[:, head].contiguous())
        assert torch.equal(out[:, head], expected)
    assert (wide[..., out_features:] == 7).all()


def test_a_weight_may_be_any_view() -> None:
    """W_UK is the transpose of a part of a stored layer."""
    stored = torch.randn(4, 20, 32, generator=torch.Generator().manual_seed(1))
    weight = stored[:, :12].transpose(1, 2)
    x, out = torch.randn(3, 4, 12), torch.empty(3, 4, 32)
    HeadLinear(weight)(x, out)
    assert torch.allclose(out, torch.einsum("thk,hnk->thn", x, weight), atol=1e-4)
