"""Linear layers on a GPU: exact but for rounding, and each row by itself."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear

from tests.kernels.oracle import DTYPES
from worker_svc import invariance, ops
from worker_svc.parallel.group import tree_sum

# (in_features, out_features): one section and many, whole steps and not, rows that can be copied
# 16 bytes at a time and rows that cannot.
SHAPES = [(64, 64), (33, 77), (7, 5), (8, 130), (384, 200), (1000, 24), (1, 1)]
# The largest layer that the emulator is given, in products of weights and one row.
EMULATED_SIZE = 50_000


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands(
    rows: int, in_features: int, out_features: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [M, K], weights [N, K] that keep their size, and a bias [N]."""
    weight = random(out_features, in_features, seed=1) / in_features**0.5
    return (
        random(rows, in_features).to(dtype),
        weight.to(dtype),
        random(out_features, seed=2).to(dtype),
    )


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    num_parts: int = 1,
    total_features: int | None = None,
) -> Tensor:
    out = torch.full((len(x), len(weight)), torch.nan, dtype=x.dtype)
    ops.linear(out, x, weight, bias, total_features, num_parts)
    return out


def assert_as_exact_as_torch(
    actual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> None:
    """Hold the first rows of a layer against twice the largest error that torch makes in any."""
    exact = torch_linear(x.double(), weight.double(), None if bias is None else bias.double())
    allowed = 2 * (torch_linear(x, weight, bias) - exact).abs().max().item()
    # Where torch happens to be exact, one rounding of the largest result.
    allowed = max(allowed, exact.abs().max().item() * torch.finfo(x.dtype).eps)
    assert (actual.double() - exact[: len(actual)]).abs().max().item() <= allowed


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [1, 13, 70])
@pytest.mark.parametrize("has_bias", [True, False])
def test_as_exact_as_torch(
    cuda_isa: str, dtype: torch.dtype, shape: tuple[int, int], rows: int, has_bias: bool
) -> None:
    x, weight, bias = operands(70, *shape, dtype)
    given = bias if has_bias else None
    assert_as_exact_as_torch(linear(x[:rows], weight, given), x, weight, given)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [3, 40, 200])
def test_float32_sums_of_many_terms(cuda_isa: str, dtype: torch.dtype, rows: int) -> None:
    """Large terms that cancel show sums kept in less than float32, or float32 operands rounded."""
    x, weight, bias = operands(rows, 2048, 64, dtype)
    x[:, 1024:] = -x[:, :1024]
    weight[:, 1024:] = weight[:, :1024]
    x[:, 1024::16] += 0.5
    assert_as_exact_as_torch(linear(x, weight, bias), x, weight, bias)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [*invariance.SHAPES, (600, 72)], ids=str)
def test_invariance_of_a_row(cuda_isa: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """The same row in every company: among 1 to 500 rows, first, in the middle and last."""
    is_emulated = cuda_isa != "gpu"
    if is_emulated and shape[0] * shape[1] > EMULATED_SIZE:
        pytest.skip("takes the emulator minutes")
    counts, offsets = invariance.ROW_COUNTS, invariance.ROW_OFFSETS
    x, weight, bias = operands(max(counts) + max(offsets), *shape, dtype)
    reference = linear(x, weight, bias)
    for count in counts[:: 9 if is_emulated else 1]:
        for offset in offsets[:: 2 if is_emulated else 1]:
            part = slice(offset, offset + count)
            assert torch.equal(linear(x[part], weight, bias), reference[part]), (count, offset)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_parts", [1, 4])
def test_invariance_of_tile_shapes(cuda_isa: str, dtype: torch.dtype, num_parts: int) -> None:
    """A layer wide enough for the largest tiles, and of several sections: each shape is chosen."""
    in_features, out_features = (320, 256) if cuda_isa != "gpu" else (4096, 4096)
    num_rows = 260 if cuda_isa != "gpu" else 1100
    x, weight, bias = operands(num_rows, in_features, out_features, dtype)
    reference = linear(x, weight, bias, num_parts)
    for count in (1, 8, 9, 16, 17, 32, 33, 64, 65, 130):
        found = linear(x[-count:], weight, bias, num_parts)
        assert torch.equal(found, reference[-count:]), count


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("in_features", [48, 600])
def test_views_have_the_bits_of_copies(cuda_isa: str, dtype: torch.dtype, in_features: int) -> None:
    """Strides and addresses, aligned or not, change nothing."""
    x, weight, bias = operands(21, in_features, 72, dtype)
    expected = linear(x, weight, bias)
    for left, right in ((8, 8), (3, 5), (1, 7)):
        wide_x, wide_weight = (
            torch.nn.functional.pad(each, (left, right), value=torch.nan) for each in (x, weight)
        )
        wide_out = torch.full((21, left + 72 + right), torch.nan, dtype=dtype)
        out = wide_out[:, left:-right]
        ops.linear(out, wide_x[:, left:-right], wide_weight[:, left:-right], bias)
        assert torch.equal(out, expected)
        assert wide_out.isnan().sum() == 21 * (left + right)
    alone = torch.full((1, 72), torch.nan, dtype=dtype)
    ops.linear(alone, x[20:], weight, bias)
    assert torch.equal(alone, expected[20:])


def test_not_a_number_stays_in_its_row(cuda_isa: str) -> None:
    x, weight, bias = operands(20, 300, 70, torch.bfloat16)
    expected = linear(x, weight, bias)
    x[7, 3] = torch.nan
    x[9, 299] = torch.inf
    spoilt = linear(x, weight, bias)
    assert spoilt[7].isnan().all()
    assert not spoilt[9].isfinite().any()
    others = [row for row in range(20) if row not in (7, 9)]
    assert torch.equal(spoilt[others], expected[others])


@pytest.mark.parametrize(("rows", "in_features", "out_features"), [(0, 8, 8), (3, 8, 0), (3, 0, 8)])
def test_nothing_to_do(cuda_isa: str, rows: int, in_features: int, out_features: int) -> None:
    x, weight = torch.zeros(rows, in_features), torch.zeros(out_features, in_features)
    bias = random(out_features)
    assert torch.equal(linear(x, weight, bias), bias.expand(rows, -1))


def test_the_cpu_is_refused(cpu_isa: str) -> None:
    with pytest.raises(ValueError, match=r"^linear: must be .*GPU.*packed_linear"):
        linear(torch.zeros(2, 8), torch.zeros(3, 8))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": torch.zeros(2, 8, 1)}, r"^x: must be \[M, K\]"),
        ({"x": torch.zeros(2, 8).double()}, "^x: must be float32.*float64"),
        ({"x": torch.zeros(8, 2).T}, "^x: must have stride 1"),
        (
            {"out": torch.zeros(0, 3), "x": torch.zeros(0, 2**31)},
            r"^x: K: must be in \[0, 2147483648\), got 2147483648$",
        ),
        ({"weight": torch.zeros(3, 7)}, "^weight: must be .*8.*7"),
        ({"weight": torch.zeros(3, 8).half()}, "^weight: must be float32, got float16"),
        ({"weight": torch.zeros(8, 3).T}, "^weight: must have stride 1"),
        ({"out": torch.zeros(3, 2)}, "^out: must be"),
        ({"out": torch.zeros(2, 3).bfloat16()}, "^out: must be float32, got bfloat16"),
        ({"out": torch.zeros(2, 3).half()}, "^out: must be float32, got float16"),
        ({"out": torch.zeros(3, 2).T}, "^out: must have stride 1"),
        ({"bias": torch.zeros(4)}, "^bias: must be .*3.*4"),
        ({"bias": torch.zeros(3).half()}, "^bias: must be float32, got float16"),
        ({"bias": torch.zeros(6)[::2]}, "^bias: must be contiguous"),
        ({"total_features": 2}, "^total_features.* at least .*3.*2"),
        ({"num_parts": 3}, "^num_parts: must be 1, 2, 4 or 8 and divide K = 8, got 3"),
        ({"num_parts": 16}, "^num_parts: .* got 16"),
        ({"num_parts": 4, "total_parts": 2}, "^total_parts: must be at least .*4, got 2"),
    ],
    ids=str,
)
def test_bad_arguments(changes: dict[str, Tensor], words: str) -> None:
    right = {
        "out": torch.zeros(2, 3),
        "x": torch.zeros(2, 8),
        "weight": torch.zeros(3, 8),
        "bias": torch.zeros(3),
    }
    with pytest.raises(ValueError, match=words):
        ops.linear(**right | changes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 40])
def test_a_share_of_the_features_has_the_bits_of_the_whole(
    cuda_isa: str, dtype: torch.dtype, rows: int
) -> None:
    """Without the number of all features, a rank would cut its sums over K elsewhere."""
    x, weight, bias = operands(rows, 1024, 512, dtype)

    def share(features: slice, total_features: int | None) -> Tensor:
        own = weight[features]
        out = torch.full((rows, len(own)), torch.nan, dtype=dtype)
        ops.linear(out, x, own, bias[features], total_features)
        return out

    large, small = slice(0, 512), slice(128, 256)
    assert torch.equal(share(large, 16384)[:, small], share(small, 16384))
    if dtype == torch.float32:  # 16 bits may hide it
        assert not torch.equal(share(large, 16384), share(large, None))


# Of a part: whole steps, a step that ends in the middle, rows that cannot be copied 16 bytes at a
# time, several sections.
PART_LENGTHS = (64, 40, 13, 328)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", PART_LENGTHS)
def test_parts_are_added_as_a_tree(cuda_isa: str, dtype: torch.dtype, length: int) -> None:
    """By one rank, or by several of which each has a subtree; for one row and for many."""
    total = 8
    x, weight, bias = operands(70, length * total, 72, dtype)
    x[:, ::7] *= 2**12  # sums in another order differ

    def sums(num_parts: int, rows: slice) -> list[Tensor]:
        found = []
        width = num_parts * length
        for left in range(0, total * length, width):
            out = torch.full((len(x[rows]), 72), torch.nan)
            own = slice(left, left + width)
            ops.linear(out, x[rows, own], weight[:, own], None, 72, num_parts, total)
            found.append(out)
        return found

    parts = sums(1, slice(70))
    for num_parts in (2, 4, 8):
        expected = [
            tree_sum(parts[first : first + num_parts]) for first in range(0, total, num_parts)
        ]
        for rows in (slice(70), slice(3, 5), slice(20, 40)):
            for own, tree in zip(sums(num_parts, rows), expected, strict=True):
                assert torch.equal(own, tree[rows]), (num_parts, rows)
    whole = torch.full((70, 72), torch.nan, dtype=dtype)
    ops.linear(whole, x, weight, bias, 72, total)
    assert torch.equal(whole, (tree_sum(parts) + bias.float()).to(dtype)), "rounded once"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("rows", [4, 100, 2048])
def test_in_a_captured_graph(rows: int) -> None:
    """Replays see new values, and calls between them do not disturb their memory."""
    x, weight, bias = (each.cuda() for each in operands(rows, 4096, 1024, torch.bfloat16))
    out = torch.zeros(rows, 1024, dtype=x.dtype, device="cuda")
    ops.linear(out, x, weight, bias)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.linear(out, x, weight, bias)
    for seed in (3, 4):
        x.copy_(random(rows, 4096, seed=seed).to(x.dtype))
        graph.replay()
        torch.cuda.synchronize()
        other = torch.empty(300, 1024, dtype=x.dtype, device="cuda")
        ops.linear(other, other.new_ones(300, 4096), weight, bias)
        expected = torch.empty_like(out)
        ops.linear(expected, x, weight, bias)
        assert torch.equal(out, expected)
