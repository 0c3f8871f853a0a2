"""Layers of 8 and 4 bits on a GPU have the bits of layers of the dequantised weights."""

import pytest
import torch
from torch import Tensor

from tests.kernels.test_grouped_linear import expected_weight, made_up
from tests.kernels.test_packed_linear import assert_same_bits, operands
from worker_svc import ops
from worker_svc.layers.fixed_tiles import Parts
from worker_svc.layers.grouped_linear import GroupedWeight
from worker_svc.layers.weight_only_linear import WeightOnlyLinear, pack_for_tensor_cores

# Tensor cores take no others.
DTYPES = [torch.bfloat16, torch.float16]
# (in_features, parts, group size): whole steps and not, groups that end within a step and not.
CUTS = [(256, 1, 64), (320, 2, 32), (384, 1, 128), (1024, 8, 128)]


def dequantised(
    x: Tensor, weight: GroupedWeight, bias: Tensor | None, total_features: int, num_parts: int
) -> Tensor:
    """What `ops.linear` gives of the weights that integers stand for, [rows, N] float32."""
    out = torch.full((len(x), len(weight.integers)), torch.nan)
    whole = expected_weight(weight).to(x.dtype)
    ops.linear(out, x, whole, bias, total_features, num_parts, num_parts)
    return out


def check(
    rows: int, cut: tuple[int, int, int], out_features: int, dtype: torch.dtype, bits: int
) -> None:
    """Compare a layer with that of the dequantised weights."""
    in_features, num_parts, group_size = cut
    weight = made_up(out_features, in_features, bits, group_size)
    x, _, bias = operands(rows, in_features, out_features, dtype)
    layer = WeightOnlyLinear(weight, bias.to(dtype), out_features, num_parts)
    parts = Parts(num_parts, num_parts)
    expected = dequantised(x, weight, bias.to(dtype), out_features, num_parts)
    assert_same_bits(layer(x, parts, torch.float32), expected)
    assert_same_bits(layer(x, parts), expected.to(dtype))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cut", CUTS[:2], ids=str)
@pytest.mark.parametrize("rows", [3, 20, 60, 260])
def test_bits_are_those_of_the_dequantised_weights(
    cuda_isa: str, rows: int, cut: tuple[int, int, int], dtype: torch.dtype, bits: int
) -> None:
    """In each tile, of one part and of several."""
    check(rows, cut, 330, dtype, bits)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_ranks_rows_and_small_scales(cuda_isa: str, cut: tuple[int, int, int], bits: int) -> None:
    in_features, num_parts, group_size = cut
    weight = made_up(77, in_features, bits, group_size)
    weight.scales[1] = 2.0**-127
    weight.scales[2] = -(2.0**-126)
    weight.scales[3] = 2.0**-110
    x, _, bias = operands(20, in_features, 77, torch.bfloat16)
    total = 1 << 16  # whose sums are cut in other places than those of so few features
    flushed = GroupedWeight(weight.integers, weight.scales.clone(), weight.zeros, bits)
    flushed.scales[1] = 0
    expected = dequantised(x, flushed, bias.bfloat16(), total, num_parts)
    for rank in torch.arange(77).chunk(4):
        own = GroupedWeight(weight.integers[rank], weight.scales[rank], weight.zeros[rank], bits)
        layer = WeightOnlyLinear(own, bias[rank].bfloat16(), total, num_parts)
        parts = Parts(num_parts, num_parts)
        assert_same_bits(layer(x, parts, torch.float32), expected[:, rank])
        assert_same_bits(layer(x[7:8], parts, torch.float32), expected[7:8, rank])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 3}, "bits: must be 8 or 4, got 3"),
        ({"bits": 4}, r"packed: must be \[ceil\(N / 16\), P \* ceil\(K / P / 64\), 128 \* bits\]"),
        ({"num_parts": 4}, "scales: must be of groups of 32, 64 or 128 of K / num_parts = 32"),
        ({"x": torch.zeros(5, 128)}, "x: must be bfloat16 or float16, got float32"),
        ({"scales": torch.zeros(3, 2, 16)}, "scales: must be"),
        ({"total_features": 39}, "total_features: must be at least N = 40, got 39"),
        ({}, "must be called with tensors on a GPU"),
    ],
)
def test_bad_arguments(change: dict[str, object], words: str) -> None:
    packed, scales = pack_for_tensor_cores(made_up(40, 128, 8, 64), 2)
    x, _, bias = operands(5, 128, 40, torch.bfloat16)
    arguments = {
        "out": torch.zeros(5, 40),
        "x": x,
        "packed": packed,
        "scales": scales,
        "bias": bias.bfloat16(),
        "bits": 8,
        "num_parts": 2,
    } | change
    with pytest.raises(ValueError, match=words):
        ops.weight_only_linear(**arguments)  # type: ignore[arg-type]
