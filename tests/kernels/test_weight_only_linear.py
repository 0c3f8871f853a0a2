"""Layers of 8 and 4 bits on a GPU, float8 too, have the bits of those of dequantised weights."""

from dataclasses import replace

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
FLOAT8 = torch.float8_e4m3fn
# Integers by their bits.
FORMS = [8, 4, FLOAT8]
Form = int | torch.dtype
# Features of a layer whose sections have five steps where K has ten.
FIVE_STEPS = 1 << 14
PACKED_FLOAT8 = torch.zeros(3, 2, 1024).to(FLOAT8)
# (in_features, parts, group size): whole steps and not, groups that end within a step and not.
CUTS = [(256, 1, 64), (320, 2, 32), (384, 1, 128), (1024, 8, 128)]


def weight_of(form: Form, out_features: int, in_features: int, group_size: int) -> GroupedWeight:
    """Any weights and scales of a form; no NaN."""
    weight = made_up(out_features, in_features, 8 if form == FLOAT8 else int(form), group_size)
    if form != FLOAT8:
        return weight
    codes = weight.integers.view(torch.uint8)
    codes = torch.where(codes & 0x7F == 0x7F, 0, codes)
    return GroupedWeight(codes.view(FLOAT8), weight.scales, torch.zeros_like(weight.zeros), 8)


def dequantised(
    x: Tensor, weight: GroupedWeight, bias: Tensor | None, total_features: int, num_parts: int
) -> Tensor:
    """What `ops.linear` gives of the weights that integers stand for, [rows, N] float32."""
    out = torch.full((len(x), len(weight.integers)), torch.nan)
    whole = expected_weight(weight).to(x.dtype)
    ops.linear(out, x, whole, bias, total_features, num_parts, num_parts)
    return out


def check(
    rows: int,
    cut: tuple[int, int, int],
    out_features: int,
    dtype: torch.dtype,
    form: Form,
    total_features: int | None = None,
) -> None:
    """Compare a layer with that of the dequantised weights.

    Args:
        total_features: of the whole layer; None for `out_features`.
    """
    in_features, num_parts, group_size = cut
    total = total_features or out_features
    weight = weight_of(form, out_features, in_features, group_size)
    x, _, bias = operands(rows, in_features, out_features, dtype)
    layer = WeightOnlyLinear(weight, bias.to(dtype), total, num_parts)
    parts = Parts(num_parts, num_parts)
    expected = dequantised(x, weight, bias.to(dtype), total, num_parts)
    assert_same_bits(layer(x, parts, torch.float32), expected)
    assert_same_bits(layer(x, parts), expected.to(dtype))


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cut", CUTS[:2], ids=str)
@pytest.mark.parametrize("rows", [3, 20, 60, 260])
def test_bits_are_those_of_the_dequantised_weights(
    cuda_isa: str, rows: int, cut: tuple[int, int, int], dtype: torch.dtype, form: Form
) -> None:
    """In each tile, of one part and of several."""
    check(rows, cut, 330, dtype, form)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("rows", [3, 20, 60, 70])
def test_sections_of_an_odd_number_of_steps(cuda_isa: str, rows: int, form: Form) -> None:
    """Two of five each, and what is left of three."""
    for in_features in (640, 832):
        check(rows, (in_features, 1, 32), 72, torch.bfloat16, form, total_features=FIVE_STEPS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 20, 60])
def test_every_float8_is_exact(cuda_isa: str, rows: int, dtype: torch.dtype) -> None:
    """Each feature has one of the codes, in each place of a step, and NaN stays what it is."""
    codes = torch.arange(256, dtype=torch.uint8)
    for first in (0, 7):
        weight = torch.zeros(256, 64, dtype=torch.uint8)
        weight[codes.long(), (codes.long() + first) % 64] = codes
        zeros = torch.zeros(256, 1, dtype=torch.int8)
        grouped = GroupedWeight(weight.view(FLOAT8), torch.ones(256, 1), zeros, 8)
        x = torch.ones(rows, 64, dtype=dtype)
        found = WeightOnlyLinear(grouped, None, 256, 1)(x, dtype=torch.float32)
        expected = codes.view(FLOAT8).float().expand(rows, -1)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_ranks_rows_and_small_scales(cuda_isa: str, cut: tuple[int, int, int], form: Form) -> None:
    in_features, num_parts, group_size = cut
    weight = weight_of(form, 77, in_features, group_size)
    weight.scales[1] = 2.0**-127
    weight.scales[2] = -(2.0**-126)
    weight.scales[3] = 2.0**-110
    x, _, bias = operands(20, in_features, 77, torch.bfloat16)
    total = 1 << 16  # whose sums are cut in other places than those of so few features
    flushed = replace(weight, scales=weight.scales.clone())
    flushed.scales[1] = 0
    expected = dequantised(x, flushed, bias.bfloat16(), total, num_parts)
    for first in range(0, 77, 20):
        rank = slice(first, first + 20)
        own = replace(
            weight,
            integers=weight.integers[rank],
            scales=weight.scales[rank],
            zeros=weight.zeros[rank],
        )
        layer = WeightOnlyLinear(own, bias[rank].bfloat16(), total, num_parts)
        parts = Parts(num_parts, num_parts)
        assert_same_bits(layer(x, parts, torch.float32), expected[:, rank])
        assert_same_bits(layer(x[7:8], parts, torch.float32), expected[7:8, rank])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 3}, "bits: must be 8 or 4, got 3"),
        ({"bits": 4}, r"packed: must be \[ceil\(N / 16\), P \* ceil\(K / P / 64\), 128 \* bits\]"),
        ({"packed": PACKED_FLOAT8, "bits": 4}, "bits: must be 8 of float8_e4m3fn, got 4"),
        ({"packed": PACKED_FLOAT8.float()}, "packed: must be int8, got float32"),
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
