"""Check, on the machine at hand, that linear layers keep the invariance rule.

The rule: the arithmetic for a token depends on the model, the token and its context, never on how
many rows were computed together or where among them. A cluster may only promise identical tokens
after a crash where this holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker_svc.layers.invariant_linear import InvariantLinear

SHAPES: tuple[tuple[int, int], ...] = (
    (64, 64),
    (33, 77),
    (7, 5),
    (384, 1024),
    (1024, 32),
    (4096, 256),
    (768, 3072),
)
"""(in_features, out_features): usual, odd, and those that tempt a library to split its sums."""

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""The types a model can be served in."""

ROW_COUNTS: tuple[int, ...] = (*range(1, 71), 128, 255, 500)
ROW_OFFSETS: tuple[int, ...] = (0, 5, 29)


@dataclass(frozen=True, slots=True)
class Violation:
    """A row that changed with its company.

    Attributes:
        dtype: "float32", "bfloat16" or "float16".
        in_features: of the layer.
        out_features: of the layer.
        num_rows: rows computed together that gave other bits than the reference batch.
    """

    dtype: str
    in_features: int
    out_features: int
    num_rows: int


@torch.inference_mode()
def check_linear_invariance(
    dtype: torch.dtype,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    row_counts: Sequence[int] = ROW_COUNTS,
) -> list[Violation]:
    """Compare rows computed in every company with the same rows in one large batch, bit by bit.

    Args:
        dtype: float32, bfloat16 or float16.
        shapes: (in_features, out_features) of the layers to try.
        row_counts: batch sizes to try.

    Returns:
        One entry per shape and batch size that gave other bits; empty where the rule holds.
    """
    generator = torch.Generator().manual_seed(0)
    violations = []
    total_rows = max(row_counts) + max(ROW_OFFSETS)
    for in_features, out_features in shapes:
        weight = torch.randn(out_features, in_features, generator=generator) / in_features**0.5
        bias = torch.randn(out_features, generator=generator)
        linear = InvariantLinear(weight.to(dtype), bias.to(dtype))
        rows = torch.randn(total_rows, in_features, generator=generator).to(dtype)
        reference = linear(rows)
        for count in row_counts:
            if not all(
                torch.equal(
                    linear(rows[offset : offset + count]), reference[offset : offset + count]
                )
                for offset in ROW_OFFSETS
            ):
                name = str(dtype).removeprefix("torch.")
                violations.append(Violation(name, in_features, out_features, count))
    return violations
