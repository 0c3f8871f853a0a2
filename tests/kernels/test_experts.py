"""Mixtures of experts on a GPU: who goes where, and the bits of each expert's own layers."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.kernels.oracle import DTYPES
from worker_svc import ops
from worker_svc.layers.expert_routing import ExpertRouting
from worker_svc.parallel.group import tree_sum

SIZES = [(1, 8, 2), (7, 4, 4), (40, 60, 4), (33, 8, 1), (5, 512, 32), (70, 3, 2)]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def routed(logits: Tensor, num_picked: int, *, normalizes: bool = False) -> tuple[Tensor, Tensor]:
    """Weights and experts of each row."""
    weights = torch.full((len(logits), num_picked), torch.nan)
    experts = torch.full((len(logits), num_picked), -5, dtype=torch.int32)
    ops.route_experts(weights, experts, logits, normalizes=normalizes)
    return weights, experts


def ordered(experts: Tensor, num_experts: int, tile_rows: int) -> tuple[Tensor, ...]:
    """Positions, rows, offsets and tiles."""
    num_pairs = experts.numel()
    num_tiles = ops.max_tiles(num_pairs, num_experts, tile_rows) + 2
    found = (
        torch.full_like(experts, -5),
        *(experts.new_full((size,), -5) for size in (num_pairs, num_experts + 1)),
        experts.new_full((num_tiles, 2), -5),
    )
    ops.order_experts(*found, experts, tile_rows)
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("normalizes", [False, True])
def test_the_most_probable_experts_are_picked(
    cuda_isa: str, dtype: torch.dtype, size: tuple[int, int, int], normalizes: bool
) -> None:
    num_rows, num_experts, num_picked = size
    logits = (3 * random(num_rows, num_experts)).to(dtype)
    weights, experts = routed(logits, num_picked, normalizes=normalizes)
    probabilities = logits.double().softmax(dim=-1).float()
    # Of equal ones the first: what a stable sort leaves in front.
    picked = probabilities.sort(dim=-1, descending=True, stable=True).indices[:, :num_picked]
    picked = picked.sort(dim=-1).values
    assert torch.equal(experts.long(), picked)
    expected = probabilities.gather(1, picked)
    if normalizes:
        expected /= expected.sum(dim=-1, keepdim=True)
    assert torch.allclose(weights, expected, rtol=1e-6, atol=0)


ROUTINGS = {
    "groups by their largest": ExpertRouting(
        160, 6, normalizes=False, scale=16.0, num_groups=8, topk_group=3
    ),
    "sigmoids": ExpertRouting(64, 6, normalizes=True, scores="sigmoid", scale=2.446),
    "groups by their largest two": ExpertRouting(
        256,
        8,
        normalizes=True,
        scores="sigmoid",
        scale=2.5,
        num_groups=8,
        topk_group=4,
        num_of_group=2,
    ),
    "as few as can be": ExpertRouting(
        64, 4, normalizes=False, num_groups=32, topk_group=2, num_of_group=2
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_groups_and_biases_are_those_of_the_cpu(
    cuda_isa: str, dtype: torch.dtype, name: str, has_bias: bool
) -> None:
    routing = ROUTINGS[name]
    logits = (3 * random(50, routing.num_experts)).to(dtype)
    # Many equal scores: which of them is picked is part of the definition.
    logits[20:] = logits[20:].round()
    bias = random(routing.num_experts, seed=1).mul(4).round() / 8 if has_bias else None
    weights = torch.full((len(logits), routing.top_k), torch.nan)
    experts = torch.full((len(logits), routing.top_k), -5, dtype=torch.int32)
    routing.route_on_device(weights, experts, logits, bias)
    expected, picked = routing.pick(logits, bias)
    picked, order = picked.sort(dim=-1)
    assert torch.equal(experts.long(), picked)
    assert torch.allclose(weights, expected.gather(1, order), rtol=1e-6, atol=0)


def test_groups_of_a_row_of_nan_are_some_that_there_are(cuda_isa: str) -> None:
    routing = ROUTINGS["groups by their largest two"]
    logits = torch.full((2, routing.num_experts), torch.nan)
    weights, experts = torch.zeros(2, 8), torch.zeros(2, 8, dtype=torch.int32)
    routing.route_on_device(weights, experts, logits, None)
    assert experts.tolist() == [list(range(8))] * 2
    assert weights.isnan().all()


def test_of_equal_experts_the_first_are_picked(cuda_isa: str) -> None:
    _, experts = routed(torch.zeros(3, 100), 5)
    assert experts.tolist() == [[0, 1, 2, 3, 4]] * 3


def test_a_row_of_nan_goes_to_experts_that_there_are(cuda_isa: str) -> None:
    logits = random(3, 9)
    logits[1, 4] = torch.nan
    weights, experts = routed(logits, 4)
    assert len(set(experts[1].tolist())) == 4
    assert experts.min() >= 0
    assert experts.max() < 9
    assert weights[1].isnan().all()
    assert not weights[[0, 2]].isnan().any()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("tile_rows", [8, 64])
def test_pairs_lie_in_the_order_of_experts(
    cuda_isa: str, size: tuple[int, int, int], tile_rows: int
) -> None:
    num_rows, num_experts, num_picked = size
    _, experts = routed(4 * random(num_rows, num_experts), num_picked)
    positions, rows, offsets, tiles = ordered(experts, num_experts, tile_rows)
    # Stable: the pairs of an expert are in the order of rows.
    order = experts.flatten().sort(stable=True).indices
    assert torch.equal(positions.flatten()[order].long(), torch.arange(experts.numel()))
    assert torch.equal(rows.long(), order // num_picked)
    counts = experts.flatten().bincount(minlength=num_experts)
    assert torch.equal(offsets.long(), torch.cat([torch.zeros(1), counts.cumsum(0)]).long())
    expected = [
        [expert, int(offsets[expert]) + first]
        for expert in range(num_experts)
        for first in range(0, int(counts[expert]), tile_rows)
    ]
    assert tiles[: len(expected)].tolist() == expected
    assert (tiles[len(expected) :, 0] == -1).all()


def linear_of(x: Tensor, weight: Tensor, parts: int, dtype: torch.dtype) -> Sequence[Tensor]:
    """The sums of each part of K, by the layer of one expert."""
    sums = []
    for own_x, own_weight in zip(x.chunk(parts, 1), weight.chunk(parts, 1), strict=True):
        out = torch.full((len(x), len(weight)), torch.nan, dtype=dtype)
        ops.linear(out, own_x, own_weight, None)
        sums.append(out)
    return sums


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tile_rows", [8, 16, 32, 64])
@pytest.mark.parametrize("in_features", [64, 600, 26])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("gathers", [True, False])
def test_an_expert_has_the_bits_of_its_own_layer(
    cuda_isa: str, dtype: torch.dtype, tile_rows: int, in_features: int, parts: int, gathers: bool
) -> None:
    """Rows of one tile and of several, an expert without any, K aligned and not."""
    num_rows, num_experts, num_picked, out_features = 45, 5, 2, 70
    logits = random(num_rows, num_experts)
    logits[:, 1] -= 100
    logits[:, 3] += 1
    _, experts = routed(logits, num_picked)
    _, rows, offsets, tiles = ordered(experts, num_experts, tile_rows)
    x = random(num_rows if gathers else len(rows), in_features, seed=1).to(dtype)
    weight = random(num_experts, out_features, in_features, seed=2).to(dtype)
    out_dtype = dtype if parts == 1 else torch.float32
    out = torch.full((parts, len(rows), out_features), torch.nan, dtype=out_dtype)
    given = rows if gathers else None
    ops.expert_linear(out, x, weight, given, offsets, tiles, tile_rows, out_features)
    of_position = x[rows.long()] if gathers else x
    for expert in range(num_experts):
        own = slice(int(offsets[expert]), int(offsets[expert + 1]))
        expected = linear_of(of_position[own], weight[expert], parts, out_dtype)
        for part in range(parts):
            assert torch.equal(out[part, own], expected[part]), (expert, part)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [64, 1030, 7])
@pytest.mark.parametrize("parts", [1, 4])
def test_outputs_are_weighted_in_the_order_of_experts(
    cuda_isa: str, dtype: torch.dtype, size: int, parts: int
) -> None:
    num_rows, num_experts, num_picked = 9, 12, 5
    weights, experts = routed(random(num_rows, num_experts), num_picked, normalizes=True)
    positions, *_ = ordered(experts, num_experts, 8)
    sums = random(parts, num_rows * num_picked, size, seed=3) * 2.0 ** random(size, seed=4).round()
    out = torch.full((num_rows, size), torch.nan, dtype=dtype)
    ops.combine_experts(out, sums, weights, positions)
    totals = []
    for part in range(parts):
        total = torch.zeros(num_rows, size)
        for i in range(num_picked):
            total += sums[part, positions[:, i].long()] * weights[:, i : i + 1]
        totals.append(total)
    assert torch.equal(out, tree_sum(totals).to(dtype))


def test_bad_arguments() -> None:
    logits, floats = torch.zeros(4, 8), torch.zeros(4, 2)
    experts = torch.zeros(4, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"^weights: experts of a row: must be from 1 to 8, got 9"):
        ops.route_experts(torch.zeros(4, 9), experts.new_zeros(4, 9), logits, normalizes=False)
    with pytest.raises(ValueError, match=r"^logits: experts: must be from 1 to 512, got 513"):
        ops.route_experts(floats, experts, torch.zeros(4, 513), normalizes=False)
    with pytest.raises(ValueError, match=r"^experts: must be int32, got float32"):
        ops.route_experts(floats, floats, logits, normalizes=False)
    for options, words in (
        ({"bias": torch.zeros(7)}, r"^bias: must be \[E\]"),
        ({"scale": float("nan")}, "^scale: must be finite, got nan"),
        ({"num_groups": 33}, "^num_groups: must be from 1 to 32, got 33"),
        ({"num_groups": 3}, "^num_groups: must divide E = 8, got 3"),
        ({"num_groups": 4, "num_kept_groups": 5}, "^num_kept_groups: must be from 1 to 4, got 5"),
        ({"num_groups": 8, "num_of_group": 2}, "^num_of_group: must be from 1 to 1, got 2"),
        ({"num_groups": 8}, "^weights: experts of a row: must be from 1 to 1, got 2"),
    ):
        with pytest.raises(ValueError, match=words):
            ops.route_experts(floats, experts, logits, normalizes=False, **options)
    rows, offsets = experts.new_zeros(8), experts.new_zeros(9)
    with pytest.raises(ValueError, match=r"^tiles: must have at least 8 rows, got 7"):
        ops.order_experts(experts, rows, offsets, experts.new_zeros(7, 2), experts, 8)
    tiles = experts.new_zeros(8, 2)
    x, weight = torch.zeros(4, 16), torch.zeros(8, 24, 16)
    out = torch.zeros(1, 8, 24)
    for changes, words in (
        ({"tile_rows": 9}, "^tile_rows: must be 8, 16, 32 or 64, got 9"),
        ({"rows": None}, r"^x: must be \[M \* k, K\]"),
        ({"out": torch.zeros(3, 8, 24)}, "^out: parts must divide K = 16, got 3"),
        ({"total_features": 23}, "^total_features: must be at least N = 24, got 23"),
        ({"weight": torch.zeros(7, 24, 16)}, "^weight: must be"),
    ):
        right = {"out": out, "x": x, "weight": weight, "rows": rows, "offsets": offsets}
        right |= {"tiles": tiles, "tile_rows": 8, "total_features": 24}
        with pytest.raises(ValueError, match=words):
            ops.expert_linear(**right | changes)
    with pytest.raises(ValueError, match=r"^sums: must have 1, 2, 4 or 8 parts, got 3"):
        ops.combine_experts(torch.zeros(4, 5), torch.zeros(3, 8, 5), floats, experts)


def test_the_cpu_is_refused(cpu_isa: str) -> None:
    with pytest.raises(ValueError, match=r"^route_experts: must be called with tensors on a GPU"):
        routed(torch.zeros(2, 4), 1)
