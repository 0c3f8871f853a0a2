"""Dense layers of the CPU have the bits of their definition, whatever computes them."""

import itertools

import pytest
import torch
from torch import Tensor

from tests.kernels.dense_definition import dense
from tests.kernels.oracle import DTYPES
from worker_svc import ops

# (in_features, out_features, parts): pairs and not, whole panels and not, chunks of several sizes,
# parts of one chunk and of several.
SHAPES = [
    (33, 77, 1),
    (7, 5, 1),
    (64, 64, 8),
    (96, 40, 8),
    (600, 33, 4),
    (772, 31, 2),
    (2064, 8, 2),
]
# One tile of each height, several, several blocks.
ROW_COUNTS = [*range(1, 18), 27, 28, 29, 64, 100, 197, 300]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands(
    num_rows: int, in_features: int, out_features: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [M, K], weights [N, K] and a bias [N] in float32."""
    weight = random(out_features, in_features, seed=1) / in_features**0.5
    return random(num_rows, in_features).to(dtype), weight.to(dtype), random(out_features, seed=2)


def packed(weight: Tensor) -> Tensor:
    result = torch.empty(ops.packed_shape(*weight.shape), dtype=weight.dtype)
    ops.pack_weight(result, weight)
    return result


def multiply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    num_parts: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    out = torch.full((len(x), len(weight)), torch.nan, dtype=dtype)
    ops.packed_linear(out, x, packed(weight), bias, num_parts)
    return out


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    """The sign of a zero counts, too."""
    assert torch.equal(actual.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_of_the_definition(
    cpu_isa: str, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    in_features, out_features, num_parts = shape
    x, weight, bias = operands(3, in_features, out_features, dtype)
    for given, parts in ((bias, num_parts), (None, 1)):
        expected = dense(x, weight, given, parts)
        assert_same_bits(multiply(x, weight, given, parts), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_of_the_definition_where_it_flushes(
    cpu_isa: str, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    """Operands, products and sums lie on both sides of the smallest normal number."""
    in_features, out_features, num_parts = shape
    x, weight, bias = operands(3, in_features, out_features, torch.float32)
    exponents = torch.randint(-129, -120, weight.shape, generator=torch.Generator().manual_seed(3))
    weight = torch.ldexp(weight * in_features**0.5, exponents).to(dtype)
    x, bias = x.to(dtype), bias * 2.0**-125
    expected = dense(x, weight, bias, num_parts)
    assert (weight.float().abs() < 2.0**-126).any(), "there is nothing to flush"
    assert_same_bits(multiply(x, weight, bias, num_parts), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("exponent", [-26, -25, -24, -23])
def test_a_sum_is_flushed_if_it_is_denormal_after_rounding(
    cpu_isa: str, dtype: torch.dtype, sign: float, exponent: int
) -> None:
    """2^-126 less a share of it: the documentation of VDPBF16PS leaves this case open."""
    x = torch.tensor([[2.0**-76, 2.0**-63]]).to(dtype)
    weight = sign * torch.tensor([[-(2.0 ** (exponent - 50)), 2.0**-63]]).to(dtype)
    expected = dense(x, weight, None, 1)
    assert (expected != 0).item() == (exponent < -24), "the case is not the one that is meant"
    assert_same_bits(multiply(x, weight), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_does_not_depend_on_its_company(
    cpu_isa: str, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    in_features, out_features, num_parts = shape
    counts = ROW_COUNTS if cpu_isa != "scalar" else [1, 5, 29]
    x, weight, bias = operands(max(counts) + 7, in_features, out_features, dtype)
    together = multiply(x, weight, bias, num_parts)
    for count, first in itertools.product(counts, (0, 7)):
        rows = slice(first, first + count)
        assert_same_bits(multiply(x[rows], weight, bias, num_parts), together[rows])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_change_no_bit(
    cpu_isa: str, dtype: torch.dtype, thread_counts: tuple[int, ...]
) -> None:
    x, weight, bias = operands(31, 600, 200, dtype)
    results = []
    for count in thread_counts:
        ops.set_num_threads(count)
        results += [multiply(x[:rows], weight, bias, 4) for rows in (1, 31)]
    for one, many in zip(results[2::2], results[3::2], strict=True):
        assert_same_bits(one, results[0])
        assert_same_bits(many, results[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_ranks_that_share_the_features_change_no_bit(
    cpu_isa: str, dtype: torch.dtype, num_ranks: int
) -> None:
    x, weight, bias = operands(17, 130, 120, dtype)
    whole = multiply(x, weight, bias)
    shares = zip(weight.chunk(num_ranks), bias.chunk(num_ranks), strict=True)
    assert_same_bits(torch.cat([multiply(x, *share) for share in shares], dim=1), whole)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("in_features", [64, 4160])
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_ranks_that_share_the_sum_own_subtrees(
    cpu_isa: str, dtype: torch.dtype, in_features: int, num_ranks: int
) -> None:
    x, weight, _ = operands(17, in_features, 40, dtype)
    sums = [
        multiply(x_share, weight_share, None, 8 // num_ranks)
        for x_share, weight_share in zip(
            x.chunk(num_ranks, dim=1), weight.chunk(num_ranks, dim=1), strict=True
        )
    ]
    while len(sums) > 1:
        sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
    assert_same_bits(sums[0], multiply(x, weight, None, 8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_result_is_rounded_once(cpu_isa: str, dtype: torch.dtype) -> None:
    x, weight, bias = operands(20, 300, 50, dtype)
    for parts in (1, 2):
        exact = multiply(x, weight, bias, parts)
        assert torch.equal(multiply(x, weight, bias, parts, dtype), exact.to(dtype))


def test_weights_of_bf16_in_float32_give_the_same_bits(cpu_isa: str) -> None:
    x, weight, bias = operands(9, 300, 50, torch.bfloat16)
    assert_same_bits(multiply(x.float(), weight.float(), bias), multiply(x, weight, bias))


def test_rows_may_be_strided_and_absent(cpu_isa: str) -> None:
    x, weight, bias = operands(20, 90, 40, torch.bfloat16)
    x_part, weight_part = x[:, 10:70], weight[:, 10:70]
    assert_same_bits(multiply(x_part, weight_part), multiply(x_part.clone(), weight_part.clone()))
    assert_same_bits(multiply(x[::2], weight, bias), multiply(x, weight, bias)[::2])
    assert multiply(x[:0], weight, bias).shape == (0, 40)


def test_a_nan_stays_in_its_row(cpu_isa: str) -> None:
    x, weight, _ = operands(20, 90, 40, torch.bfloat16)
    expected = multiply(x, weight)
    x[3, 5] = torch.nan
    result = multiply(x, weight)
    assert result[3].isnan().all()
    others = torch.arange(20) != 3
    assert_same_bits(result[others], expected[others])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_parts": 3}, "num_parts: must be 1, 2, 4 or 8 and divide K / 2 = 60 / 2, got 3"),
        ({"num_parts": 8}, "num_parts: must be 1, 2, 4 or 8 and divide K / 2 = 60 / 2, got 8"),
        ({"packed": torch.zeros(2, 30, 64)}, "packed: must be bfloat16, got float32"),
        ({"packed": torch.zeros(1, 30, 64).bfloat16()}, r"packed: must be \[ceil"),
        ({"bias": torch.zeros(40).bfloat16()}, "bias: must be float32, got bfloat16"),
        ({"bias": torch.zeros(41)}, r"bias: must be \[N\]"),
        ({"out": torch.zeros(4, 40)}, r"out: must be \[M, N\]"),
        ({"out": torch.zeros(5, 40).half()}, "out: must be bfloat16, got float16"),
    ],
)
def test_bad_arguments(change: dict[str, object], words: str) -> None:
    x, weight, bias = operands(5, 60, 40, torch.bfloat16)
    arguments = {
        "out": torch.zeros(5, 40),
        "x": x,
        "packed": packed(weight),
        "bias": bias,
        "num_parts": 2,
    } | change
    with pytest.raises(ValueError, match=words):
        ops.packed_linear(**arguments)  # type: ignore[arg-type]
