"""Check, on the machine at hand, that linear layers keep the invariance rule.

The rule: the arithmetic for a token depends on the model, the token and its context, never on how
many rows were computed together or where among them, nor on how many ranks share the output
features. A cluster may only promise identical tokens after a crash where this holds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from worker_svc.layers.device_linear import make_linear

SHAPES: tuple[tuple[int, int], ...] = (
    (64, 64),
    (33, 77),
    (7, 5),
    (384, 1024),
    (1024, 32),
    (4096, 256),
    (768, 3072),
)
"""(in_features, out_features): usual ones, odd ones, and some whose sums libraries split."""

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""The types a model can be served in."""

ROW_COUNTS: tuple[int, ...] = (*range(1, 71), 128, 255, 500)
ROW_OFFSETS: tuple[int, ...] = (0, 5, 29)
RANK_COUNTS: tuple[int, ...] = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Violation:
    """A row whose bits changed with the rows beside it, or with the number of ranks.

    Attributes:
        dtype: "float32", "bfloat16" or "float16".
        in_features: input features of the layer.
        out_features: output features of the layer.
        num_rows: rows computed together that gave other bits than the reference.
        num_ranks: ranks that shared the output features.
    """

    dtype: str
    in_features: int
    out_features: int
    num_rows: int
    num_ranks: int = 1


@torch.inference_mode()
def check_linear_invariance(
    dtype: torch.dtype,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    row_counts: Sequence[int] = ROW_COUNTS,
) -> list[Violation]:
    """Compare rows in batches of every size with the same rows in one large batch, bit by bit.

    Args:
        dtype: float32, bfloat16 or float16.
        shapes: (in_features, out_features) of the layers to try.
        row_counts: batch sizes to try.

    Returns:
        One entry per shape and batch size that gave other bits; empty where the rule holds.
    """
    violations = []
    total_rows = max(row_counts) + max(ROW_OFFSETS)
    for weight, bias, rows in _layers(dtype, shapes, total_rows):
        linear = make_linear(weight, bias, weight.shape[0])
        reference = linear(rows)
        for count in row_counts:
            if not all(
                torch.equal(
                    linear(rows[offset : offset + count]), reference[offset : offset + count]
                )
                for offset in ROW_OFFSETS
            ):
                violations.append(_violation(weight, count))
    return violations


@torch.inference_mode()
def check_split_invariance(
    dtype: torch.dtype,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    row_counts: Sequence[int] = (1, 7, 64, 255),
) -> list[Violation]:
    """Compare layers cut over ranks by output features with the whole layer, bit by bit.

    Args:
        dtype: float32, bfloat16 or float16.
        shapes: (in_features, out_features) of the layers to try.
        row_counts: batch sizes to try.

    Returns:
        One entry per shape, number of ranks and batch size that gave other bits.
    """
    violations = []
    for weight, bias, rows in _layers(dtype, shapes, max(row_counts)):
        whole = make_linear(weight, bias, weight.shape[0])
        for num_ranks in RANK_COUNTS:
            if weight.shape[0] < num_ranks:
                continue
            ranks = [
                make_linear(own_weight.contiguous(), own_bias.contiguous(), weight.shape[0])
                for own_weight, own_bias in zip(
                    weight.chunk(num_ranks), bias.chunk(num_ranks), strict=True
                )
            ]
            for count in row_counts:
                x = rows[:count]
                if not torch.equal(torch.cat([rank(x) for rank in ranks], dim=1), whole(x)):
                    violations.append(_violation(weight, count, num_ranks))
    return violations


def _layers(
    dtype: torch.dtype, shapes: Sequence[tuple[int, int]], num_rows: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield weight, bias and input rows of a made-up layer of each shape."""
    generator = torch.Generator().manual_seed(0)
    for in_features, out_features in shapes:
        weight = torch.randn(out_features, in_features, generator=generator) / in_features**0.5
        bias = torch.randn(out_features, generator=generator)
        rows = torch.randn(num_rows, in_features, generator=generator)
        yield weight.to(dtype), bias.to(dtype), rows.to(dtype)


def _violation(weight: torch.Tensor, num_rows: int, num_ranks: int = 1) -> Violation:
    out_features, in_features = weight.shape
    name = str(weight.dtype).removeprefix("torch.")
    return Violation(name, in_features, out_features, num_rows, num_ranks)
