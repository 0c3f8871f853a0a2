"""Linear layers of heads on a GPU: each has the bits of a layer of its own."""

import pytest
import torch
from torch import Tensor

from tests.kernels.oracle import DTYPES
from tests.kernels.test_linear import linear, random
from worker_svc import ops

# K and N: of one section and of several, and rows that cannot be copied 16 bytes at a time.
SHAPES = [(128, 64), (512, 40), (33, 21)]


def check(rows: int, heads: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Hold a call over tensors with gaps, heads and tokens in either order, against `linear`."""
    in_features, out_features = shape
    x = random(rows, heads, in_features).to(dtype)
    weight = (random(heads, out_features, in_features, seed=1) / in_features**0.5).to(dtype)
    expected = torch.stack([linear(x[:, h].clone(), weight[h]) for h in range(heads)], 1)
    out = torch.full((rows, heads, out_features), torch.nan, dtype=dtype)
    ops.head_linear(out, x, weight)
    assert torch.equal(out, expected)

    wide = torch.full((heads, rows, in_features + 64), torch.nan, dtype=dtype)
    wide[..., :in_features] = x.transpose(0, 1)
    wide_out = torch.full((heads, rows, out_features + 5), torch.nan, dtype=dtype)
    out = wide_out[..., :out_features].transpose(0, 1)
    ops.head_linear(out, wide[..., :in_features].transpose(0, 1), weight)
    assert torch.equal(out, expected)
    assert wide_out[..., out_features:].isnan().all()


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [1, 9, 17, 33, 70])
@pytest.mark.parametrize("heads", [1, 3])
def test_each_head_has_the_bits_of_its_layer(
    cuda_isa: str, dtype: torch.dtype, shape: tuple[int, int], rows: int, heads: int
) -> None:
    check(rows, heads, shape, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_largest_tiles(cuda_isa: str, dtype: torch.dtype) -> None:
    check(130, 3, (72, 136), dtype)


def test_nothing_to_do(cuda_isa: str) -> None:
    for rows, heads in ((0, 3), (3, 0)):
        ops.head_linear(
            torch.zeros(rows, heads, 8), torch.zeros(rows, heads, 8), torch.zeros(heads, 8, 8)
        )


def operands() -> dict[str, Tensor]:
    return {
        "out": torch.zeros(2, 3, 4),
        "x": torch.zeros(2, 3, 8),
        "weight": torch.zeros(3, 4, 8),
    }


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("out", torch.zeros(2, 2, 4), r"out: must be \[T, H, N\]"),
        ("out", torch.zeros(2, 3, 4).half(), r"out: must be float32"),
        ("weight", torch.zeros(3, 4, 7), r"weight: must be \[H, N, K\]"),
        ("weight", torch.zeros(3, 8, 4).transpose(1, 2), r"weight: .*stride"),
        ("x", torch.zeros(3, 8), r"x: must be \[T, H, K\]"),
    ],
)
def test_a_wrong_operand_is_refused(cuda_isa: str, name: str, tensor: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.head_linear(**operands() | {name: tensor})


def test_on_the_cpu_it_is_refused(cpu_isa: str) -> None:
    with pytest.raises(ValueError, match=r"head_linear: must be called with tensors on a GPU"):
        ops.head_linear(**operands())
