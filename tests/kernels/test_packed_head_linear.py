"""Linear layers of heads on the CPU: each has the bits of a layer of its own."""

from itertools import product

import pytest
import torch
from torch import Tensor

from tests.kernels.oracle import DTYPES
from tests.kernels.test_packed_linear import multiply, packed, random
from worker_svc import ops

# K and N: chunks of several sizes, odd, whole panels and not.
SHAPES = [(128, 512), (512, 128), (33, 77), (600, 40)]


def packed_heads(weight: Tensor) -> Tensor:
    return torch.stack([packed(each) for each in weight])


# Rows and heads: of tiles and of blocks, of fewer heads than threads and of more.
COUNTS = [(1, 16), (5, 3), (14, 1), (15, 2), (70, 2), (300, 5)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_head_has_the_bits_of_its_layer(
    cpu_isa: str, dtype: torch.dtype, shape: tuple[int, int], thread_counts: tuple[int, ...]
) -> None:
    """Heads and tokens in either order, with gaps."""
    in_features, out_features = shape
    for rows, heads in COUNTS:
        x = random(rows, heads, in_features).to(dtype)
        weight = (random(heads, out_features, in_features, seed=1) / in_features**0.5).to(dtype)
        expected = [multiply(x[:, h], weight[h], dtype=dtype) for h in range(heads)]
        wide = torch.full((heads, rows, in_features + 64), torch.nan, dtype=dtype)
        wide[..., :in_features] = x.transpose(0, 1)
        both = packed_heads(weight)
        for given, count in product((x, wide[..., :in_features].transpose(0, 1)), thread_counts):
            ops.set_num_threads(count)
            whole = torch.full((rows, heads, out_features + 5), torch.nan, dtype=dtype)
            out = whole[..., :out_features]
            ops.packed_head_linear(out, given, both)
            assert torch.equal(out, torch.stack(expected, 1)), (rows, heads, count)
            assert whole[..., out_features:].isnan().all()


def test_no_rows(cpu_isa: str) -> None:
    ops.packed_head_linear(
        torch.empty(0, 2, 40), torch.empty(0, 2, 8), packed_heads(torch.ones(2, 40, 8))
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"out": torch.zeros(5, 3, 40)}, r"^out: must be \[T, H, N\]"),
        ({"out": torch.zeros(5, 2, 40).half()}, "^out: must be float32, got float16"),
        ({"packed": torch.zeros(3, 2, 4, 64)}, r"^packed: must be \[H, ceil\(N / 32\), ceil"),
        ({"packed": torch.zeros(2, 2, 4, 64).half()}, "^packed: must be float32, got float16"),
        (
            {"x": torch.zeros(5, 2, 16)[..., ::2]},
            "^x: must have stride 1 in its last dimension, got 2",
        ),
    ],
)
def test_bad_arguments(change: dict[str, Tensor], words: str) -> None:
    arguments = {
        "out": torch.zeros(5, 2, 40),
        "x": torch.zeros(5, 2, 8),
        "packed": packed_heads(torch.zeros(2, 40, 8)),
    }
    with pytest.raises(ValueError, match=words):
        ops.packed_head_linear(**arguments | change)
