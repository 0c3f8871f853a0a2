"""Dense layers over weights of 8 and 4 bits have the bits of layers over what those stand for."""

import pytest
import torch
from torch import Tensor

from tests.kernels.oracle import DTYPES
from tests.kernels.test_packed_linear import assert_same_bits, multiply, operands, random
from worker_svc import ops
from worker_svc.layers import device_grouped_linear
from worker_svc.layers.device_grouped_linear import DeviceGroupedLinear
from worker_svc.layers.grouped_linear import GroupedLinear, GroupedWeight, pack_grouped_weight

# (in_features, out_features, parts, group size): whole panels and not, chunks of several sizes.
SHAPES = [(64, 77, 1, 64), (512, 40, 8, 64), (768, 33, 8, 32), (384, 31, 1, 128)]
# One tile of each height up to those that stay in registers, several, several blocks.
ROW_COUNTS = [1, 2, 3, 4, 5, 17, 200]


def made_up(out_features: int, in_features: int, bits: int, group_size: int) -> GroupedWeight:
    """Any integers, zeros and scales, as no quantiser of one kind would make them."""
    generator = torch.Generator().manual_seed(5)
    low, high = (-128, 128) if bits == 8 else (0, 16)
    shape = (out_features, in_features // group_size)
    integers = torch.randint(low, high, (out_features, in_features), generator=generator)
    zeros = torch.randint(low, high, shape, generator=generator)
    scales = random(*shape, seed=6) / 100
    return GroupedWeight(integers.to(torch.int8), scales, zeros.to(torch.int8), bits)


def expected_weight(weight: GroupedWeight) -> Tensor:
    """By the definition, element by element, in float64, rounded once to float32."""
    size = weight.integers.shape[1] // weight.scales.shape[1]
    scales = weight.scales.double().repeat_interleave(size, dim=1)
    zeros = weight.zeros.double().repeat_interleave(size, dim=1)
    return ((weight.integers.double() - zeros) * scales).float()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_are_those_of_the_dequantised_weights(
    cpu_isa: str, shape: tuple[int, int, int, int], dtype: torch.dtype, bits: int
) -> None:
    in_features, out_features, num_parts, group_size = shape
    weight = made_up(out_features, in_features, bits, group_size)
    x, _, bias = operands(max(ROW_COUNTS), in_features, out_features, dtype)
    layer = GroupedLinear(weight, bias, num_parts, dtype)
    same = expected_weight(weight).to(dtype)
    for count in ROW_COUNTS:
        expected = multiply(x[:count], same, bias, num_parts)
        assert_same_bits(layer(x[:count], torch.float32), expected)


@pytest.mark.parametrize("bits", [8, 4])
def test_denormal_scales_count_as_zero(cpu_isa: str, bits: int) -> None:
    weight = made_up(40, 128, bits, 32)
    weight.scales.mul_(2.0**-120)
    x = random(3, 128).bfloat16() * 2.0**60
    result = GroupedLinear(weight, None, 1, x.dtype)(x, torch.float32)
    is_denormal = weight.scales.abs() < 2.0**-126
    assert is_denormal.any(), "there is nothing to flush"
    weight.scales[is_denormal] = 0
    assert_same_bits(result, multiply(x, expected_weight(weight).bfloat16()))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(64, 77, 64), (96, 300, 32), (640, 40, 128)], ids=str)
def test_bits_on_a_gpu_are_those_of_the_dequantised_weights(
    cuda_isa: str,
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    bits: int,
) -> None:
    """All features at once, a few at a time, and shared out among ranks."""
    in_features, out_features, group_size = shape
    weight = made_up(out_features, in_features, bits, group_size)
    weight.scales[1] = 2.0**-127
    weight.scales[2] = -(2.0**-126)
    x, _, bias = operands(20, in_features, out_features, dtype)
    flushed = expected_weight(weight)
    flushed[1] = bias[1] = 0
    total = 1 << 16  # whose sums are cut in other places than those of so few features
    for rows in (x[:1], x):
        expected = rows.new_empty(len(rows), out_features)
        ops.linear(expected, rows, flushed.to(dtype), bias.to(dtype), total)
        for most in (1 << 20, 1):
            monkeypatch.setattr(device_grouped_linear, "_MAX_ELEMENTS", most)
            layer = DeviceGroupedLinear(weight, bias.to(dtype), total, dtype)
            assert_same_bits(layer(rows).float(), expected.float())
        for rank in torch.arange(out_features).chunk(4):
            own = GroupedWeight(
                weight.integers[rank], weight.scales[rank], weight.zeros[rank], bits
            )
            layer = DeviceGroupedLinear(own, bias[rank].to(dtype), total, dtype)
            assert_same_bits(layer(rows).float(), expected[:, rank].float())


@pytest.mark.parametrize(("bits", "steps"), [(8, 127), (4, 15)])
def test_quantised_weights_are_within_half_a_step(bits: int, steps: int) -> None:
    weight = random(50, 256)
    weight[3] = 0
    weight[4] = weight[4].abs()
    grouped = GroupedWeight.of(weight, bits, 64)
    assert grouped.group_size == 64
    error = (grouped.dequantised() - weight).abs().view(50, 4, 64).amax(-1)
    # A zero is rounded, too: at the ends of a range it may take another half.
    assert (error <= grouped.scales * (0.501 if bits == 8 else 1.001)).all()
    assert grouped.dequantised()[3].abs().sum() == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 3}, "bits: must be 8 or 4, got 3"),
        ({"bits": 8}, "packed: must be groups of 32, 64 or 128 of K / num_parts = 64"),
        ({"num_parts": 4}, "packed: must be groups of 32, 64 or 128 of K / num_parts = 32"),
        ({"packed": torch.zeros(2, 2, 1184)}, "packed: must be int8, got float32"),
    ],
)
def test_bad_arguments(change: dict[str, object], words: str) -> None:
    x, _, bias = operands(5, 128, 40, torch.bfloat16)
    arguments = {
        "out": torch.zeros(5, 40),
        "x": x,
        "packed": pack_grouped_weight(made_up(40, 128, 4, 64), torch.bfloat16),
        "bias": bias,
        "num_parts": 2,
        "bits": 4,
    } | change
    with pytest.raises(ValueError, match=words):
        ops.grouped_linear(**arguments)  # type: ignore[arg-type]
