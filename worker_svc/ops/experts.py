"""Mixtures of experts on a GPU.

A pair is a row and one of the experts that are picked for it. Pairs lie at positions in the order
of their experts, so that a tile of rows has one expert. Which rows an expert has is known on the
device alone: nothing here makes the host wait, and all can be captured in a graph.

E is the number of experts, k of those that a row goes to. worker_svc.ops documents what all
operations share.
"""

from torch import Tensor

from worker_svc.ops import compiled

MAX_EXPERTS = 512
MAX_EXPERTS_OF_ROW = 32
MAX_EXPERT_GROUPS = 32


def route_experts(
    weights: Tensor,
    experts: Tensor,
    logits: Tensor,
    *,
    normalizes: bool,
    bias: Tensor | None = None,
    is_sigmoid: bool = False,
    scale: float = 1.0,
    num_groups: int = 1,
    num_kept_groups: int = 1,
    num_of_group: int = 1,
) -> None:
    """Pick the experts of the largest scores, which are the softmax of the logits or their sigmoid.

    Scores are computed in float64 and rounded to float32; of equal ones that of the lower index is
    picked. docs/numerics.md has the order of what follows.

    Args:
        weights: [M, k] float32; scores of the experts, without the bias.
        experts: [M, k] int32; which they are, ascending in a row.
        logits: [M, E] of the router; E at most 512, k at most 32.
        normalizes: Divide the scores of a row's experts by their sum.
        bias: [E] float32, added to the scores for the choice alone.
        is_sigmoid: Whether scores are sigmoids.
        scale: Factor of the weights, at last.
        num_groups: Groups of equal size that experts lie in, in order; at most 32.
        num_kept_groups: Groups of the largest scores, from which experts are picked.
        num_of_group: Largest scores of a group's experts whose sum the group's is; 1 or 2.

    Mutates:
        weights, experts.
    """
    compiled._C.route_experts(
        weights,
        experts,
        logits,
        bias,
        is_sigmoid,
        normalizes,
        scale,
        num_groups,
        num_kept_groups,
        num_of_group,
    )


def max_tiles(num_pairs: int, num_experts: int, tile_rows: int) -> int:
    """Return how many tiles of rows there are at most, however rows are spread over experts.

    Args:
        num_pairs: M * k.
        num_experts: E.
        tile_rows: At most, of a tile.
    """
    used = min(num_pairs, num_experts)
    return used + (num_pairs - used) // tile_rows


def order_experts(
    positions: Tensor,
    rows: Tensor,
    offsets: Tensor,
    tiles: Tensor,
    experts: Tensor,
    tile_rows: int,
) -> None:
    """Put pairs in the order of their experts, those of an expert in the order of rows.

    Args:
        positions: [M, k] int32; where each pair lies.
        rows: [M * k] int32; the row of the pair at each position.
        offsets: [E + 1] int32; first position of each expert.
        tiles: [at least max_tiles(...), 2] int32; expert and first position of each tile of rows;
            an expert of -1 behind the last one.
        experts: [M, k] int32, of `route_experts`.
        tile_rows: At most, of a tile.

    Mutates:
        positions, rows, offsets, tiles.
    """
    compiled._C.order_experts(positions, rows, offsets, tiles, experts, tile_rows)


def expert_linear(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    rows: Tensor | None,
    offsets: Tensor,
    tiles: Tensor,
    tile_rows: int,
    total_features: int,
) -> None:
    """Multiply the rows of each expert by its weights, with the bits of `linear`.

    Args:
        out: [P, M * k, N], in the dtype of x or float32; the sums of each of P equal parts of K.
        x: [*, K].
        weight: [E, N, K].
        rows: [M * k] int32, row of x at each position; None if they are positions too.
        offsets: Of `order_experts`.
        tiles: Of `order_experts`.
        tile_rows: As `order_experts` was given; 8, 16, 32 or 64.
        total_features: Features of the whole layer, N of which are computed here.

    Mutates:
        out.
    """
    compiled._C.expert_linear(out, x, weight, rows, offsets, tiles, tile_rows, total_features)


def weight_only_experts(
    out: Tensor,
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    rows: Tensor | None,
    offsets: Tensor,
    tiles: Tensor,
    tile_rows: int,
    total_features: int,
    bits: int,
) -> None:
    """Multiply the rows of each expert by its weights, with the bits of `weight_only_linear`.

    Args:
        out: [P, M * k, N], in the dtype of x or float32; the sums of each of P equal parts of K.
        x: [*, K], bfloat16 or float16; rows begin at multiples of 16 bytes.
        packed: [E, ceil(N / 16), P * ceil(K / P / 64), 128 * bits]; of each expert, the weights
            that `weight_only_linear` takes for K in P parts.
        scales: [E, ceil(N / 16), K / group size, 16, 2] float32; of each expert, as above.
        rows: As `expert_linear` takes them.
        offsets: Of `order_experts`.
        tiles: Of `order_experts`.
        tile_rows: As `order_experts` was given; 8, 16, 32 or 64.
        total_features: Features of the whole layer, N of which are computed here.
        bits: Of a weight, 8 or 4.

    Mutates:
        out.
    """
    compiled._C.weight_only_experts(
        *(out, x, packed, scales, rows, offsets, tiles, tile_rows, total_features, bits)
    )


def combine_experts(out: Tensor, sums: Tensor, weights: Tensor, positions: Tensor) -> None:
    """Add up what the experts of each row return, times their weights.

    In float32: each part over the experts in their order, then parts as neighbours in a binary
    tree; the result is rounded once.

    Args:
        out: [M, H].
        sums: [P, M * k, H] float32; P is 1, 2, 4 or 8.
        weights: [M, k] float32.
        positions: [M, k] int32, of `order_experts`.

    Mutates:
        out.
    """
    compiled._C.combine_experts(out, sums, weights, positions)
