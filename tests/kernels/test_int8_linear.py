"""Dense layers in int8 have the bits of their definition, whatever computes them."""

import itertools

import pytest
import torch
from torch import Tensor

from tests.kernels.dense_definition import int8_dense
from tests.kernels.oracle import DTYPES
from tests.kernels.test_packed_linear import ROW_COUNTS, assert_same_bits, operands
from worker_svc import ops
from worker_svc.layers.int8_linear import Int8Linear, pack_int8_weight, quantise_weight

# (in_features, out_features, parts): fours and not, whole panels and not, blocks of x and not.
SHAPES = [(33, 77, 1), (7, 5, 1), (64, 64, 8), (96, 40, 8), (600, 33, 4), (772, 31, 2)]
LONGEST_PART = 1 << 17


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None, num_parts: int = 1) -> Tensor:
    return Int8Linear(weight, bias, num_parts)(x, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_of_the_definition(isa: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    in_features, out_features, num_parts = shape
    x, weight, bias = operands(19, in_features, out_features, dtype)
    for given, parts in ((bias, num_parts), (None, 1)):
        assert_same_bits(multiply(x, weight, given, parts), int8_dense(x, weight, given, parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_of_the_definition_where_it_flushes(isa: str, dtype: torch.dtype) -> None:
    """Scales, products of two and elements lie on both sides of the smallest normal number."""
    x, weight, bias = operands(40, 96, 40, torch.float32)
    exponents = torch.arange(-130, -90)[:, None]
    x = torch.ldexp(x, exponents).to(dtype)
    weight = torch.ldexp(weight, torch.full((40, 1), -20)).to(dtype)
    weight[7] = torch.ldexp(weight[7], torch.tensor(-100))
    expected = int8_dense(x, weight, bias * 2.0**-125, 4)
    assert (expected == 0).any(), "there is nothing to flush"
    assert_same_bits(multiply(x, weight, bias * 2.0**-125, 4), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_denormals_of_few_and_many_rows(isa: str, dtype: torch.dtype) -> None:
    """A denormal element is zero in a row of a scale that is just normal."""
    x = torch.full((17, 64), 0.9 * 2.0**-126).to(dtype)
    x[:, 0] = 140 * 2.0**-126
    weight = torch.full((32, 64), 2.0**60).to(dtype)
    expected = int8_dense(x, weight, None, 1)
    for count in (1, 15, 16, 17):
        assert_same_bits(multiply(x[:count], weight), expected[:count])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_longest_part_fits_into_int32(isa: str, sign: float) -> None:
    x, weight = torch.full((2, LONGEST_PART), sign), torch.ones(3, LONGEST_PART)
    assert_same_bits(multiply(x, weight), int8_dense(x, weight, None, 1))


# Odd and even numbers of panels, parts of whole blocks and not.
@pytest.mark.parametrize("shape", [(264, 136, 4), (192, 128, 1), (600, 61, 2)], ids=str)
def test_every_tile_of_a_gpu_has_the_bits_of_the_definition(
    cuda_isa: str, shape: tuple[int, int, int]
) -> None:
    in_features, out_features, num_parts = shape
    x, weight, bias = operands(65, in_features, out_features, torch.bfloat16)
    layer = Int8Linear(weight, bias, num_parts)
    expected = int8_dense(x, weight, bias, num_parts)
    for count in range(1, len(x) + 1):
        assert_same_bits(layer(x[:count], torch.float32), expected[:count])
        assert torch.equal(layer(x[:count]), expected[:count].bfloat16())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_does_not_depend_on_its_company(
    isa: str, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    in_features, out_features, num_parts = shape
    counts = [1, 5, 29] if isa == "scalar" or "cuda" in isa else ROW_COUNTS
    x, weight, bias = operands(max(counts) + 7, in_features, out_features, dtype)
    layer = Int8Linear(weight, bias, num_parts)
    together = layer(x)
    for count, first in itertools.product(counts, (0, 7)):
        rows = slice(first, first + count)
        assert torch.equal(layer(x[rows]), together[rows])


def test_threads_change_no_bit(cpu_isa: str, thread_counts: tuple[int, ...]) -> None:
    x, weight, bias = operands(31, 600, 200, torch.bfloat16)
    results = []
    for count in thread_counts:
        ops.set_num_threads(count)
        results.append([multiply(x[:rows], weight, bias, 4) for rows in (1, 31)])
    for result in results[1:]:
        for actual, expected in zip(result, results[0], strict=True):
            assert_same_bits(actual, expected)


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_ranks_that_share_the_sum_own_subtrees(isa: str, num_ranks: int) -> None:
    x, weight, _ = operands(17, 208, 40, torch.bfloat16)
    sums = [
        multiply(*share, None, 8 // num_ranks)
        for share in zip(x.chunk(num_ranks, dim=1), weight.chunk(num_ranks, dim=1), strict=True)
    ]
    while len(sums) > 1:
        sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
    assert_same_bits(sums[0], multiply(x, weight, None, 8))


def test_ranks_that_share_the_features_change_no_bit(isa: str) -> None:
    x, weight, bias = operands(17, 130, 120, torch.bfloat16)
    shares = zip(weight.chunk(3), bias.chunk(3), strict=True)
    parts = [multiply(x, *share) for share in shares]
    assert_same_bits(torch.cat(parts, dim=1), multiply(x, weight, bias))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_where_it_is(isa: str, bad: float) -> None:
    x, weight, _ = operands(20, 90, 40, torch.bfloat16)
    expected = multiply(x, weight)
    x[3, 5] = bad
    weight[7, 2] = bad
    result = multiply(x, weight)
    assert result[3].isnan().all()
    assert result[:, 7].isnan().all()
    rows, features = torch.arange(20) != 3, torch.arange(40) != 7
    assert_same_bits(result[rows][:, features], expected[rows][:, features])


def test_rows_may_be_strided_and_absent(isa: str) -> None:
    x, weight, bias = operands(20, 90, 40, torch.bfloat16)
    assert_same_bits(multiply(x[::2], weight, bias), multiply(x, weight, bias)[::2])
    assert multiply(x[:0], weight, bias).shape == (0, 40)


def test_a_product_is_near_the_exact_one() -> None:
    x, weight, bias = operands(20, 600, 50, torch.bfloat16)
    exact = x.double() @ weight.double().t() + bias
    assert (multiply(x, weight, bias, 4) - exact).abs().max() < 0.05


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_parts": 3}, "num_parts: must be 1, 2, 4 or 8 and divide K / 2 = 60 / 2, got 3"),
        ({"packed": torch.zeros(2, 18, 128)}, "packed: must be int8, got float32"),
        ({"packed": torch.zeros(2, 17, 128, dtype=torch.int8)}, r"packed: must be \[ceil"),
        ({"bias": torch.zeros(40).bfloat16()}, "bias: must be float32, got bfloat16"),
        ({"out": torch.zeros(5, 40).half()}, "out: must be bfloat16, got float16"),
    ],
)
def test_bad_arguments(change: dict[str, object], words: str) -> None:
    x, weight, bias = operands(5, 60, 40, torch.bfloat16)
    arguments = {
        "out": torch.zeros(5, 40),
        "x": x,
        "packed": pack_int8_weight(*quantise_weight(weight, 2)),
        "bias": bias,
        "num_parts": 2,
    } | change
    with pytest.raises(ValueError, match=words):
        ops.int8_linear(**arguments)  # type: ignore[arg-type]


def test_a_part_that_is_too_long_is_refused() -> None:
    x = torch.zeros(1, LONGEST_PART + 2)
    with pytest.raises(ValueError, match="K / num_parts must be at most 131072, got 131074"):
        multiply(x, torch.zeros(1, LONGEST_PART + 2))
