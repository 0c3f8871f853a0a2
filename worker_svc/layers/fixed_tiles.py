"""Dense layers on a GPU of fixed tiles, whose sums do not depend on rows or ranks."""

from dataclasses import dataclass

import torch

from worker_svc import ops


@dataclass(frozen=True, slots=True)
class Parts:
    """How the sums over the input features of a layer are cut; see ops.linear.

    Attributes:
        num_own: parts that this rank computes; 1, 2, 4 or 8.
        total: those of all ranks.
    """

    num_own: int = 1
    total: int = 1


WHOLE = Parts()


def fixed_tile_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    total_features: int,
    *,
    parts: Parts = WHOLE,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return x W^T + b; a row's bits do not depend on the other rows (see ops.linear).

    Args:
        x: [rows, in_features].
        weight: [out_features of this rank, in_features].
        bias: [out_features of this rank] or None.
        total_features: out_features over all ranks.
        parts: that the input features are cut into.
        dtype: of the result, float32 or that of x; None for that of x.
    """
    out = x.new_empty(x.shape[0], weight.shape[0], dtype=dtype or x.dtype)
    ops.linear(out, x, weight, bias, total_features, parts.num_own, parts.total)
    return out
