"""Dense layers as docs/numerics.md defines them, in numpy: slow, and nothing of the kernels."""

import numpy as np
import torch
from numpy.typing import NDArray

from tests.kernels.definition import Floats, f32, flush, fma

CHUNK = 256


def sum_of_part(x: Floats, weight: Floats) -> Floats:
    """Return [M, N] of a part [M, L] and [N, L]."""
    total = None
    for first in range(0, x.shape[1], CHUNK):
        chunk = np.zeros((len(x), len(weight)), np.float32)
        for k in range(first, min(first + CHUNK, x.shape[1]), 2):
            for each in (k + 1, k):  # the odd element of a pair first
                chunk = fma(flush(x[:, None, each]), flush(weight[None, :, each]), chunk)
        total = chunk if total is None else flush(total + chunk)
    assert total is not None
    return total


def dense(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, num_parts: int
) -> torch.Tensor:
    """Return [M, N] float32 of x [M, K], weight [N, K] and bias [N]."""
    odd = x.shape[1] % 2
    rows = np.pad(x.float().numpy(), ((0, 0), (0, odd)))
    weights = np.pad(weight.float().numpy(), ((0, 0), (0, odd)))
    sums = [
        sum_of_part(*part)
        for part in zip(
            np.split(rows, num_parts, axis=1), np.split(weights, num_parts, axis=1), strict=True
        )
    ]
    return add_parts(sums, bias)


def add_parts(sums: list[Floats], bias: torch.Tensor | None) -> torch.Tensor:
    """Return the sum of the parts' sums, each [M, N], and a bias [N]."""
    while len(sums) > 1:
        sums = [flush(a + b) for a, b in zip(sums[::2], sums[1::2], strict=True)]
    total = sums[0]
    if bias is not None:
        total = flush(total + flush(bias.float().numpy()))
    return torch.from_numpy(total)


def quantise(rows: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Return the integers [M, L] and scales [M] of rows [M, L]."""
    scales = f32(np.abs(flush(rows)).max(axis=1) / f32(127))
    scales = np.where(np.isfinite(rows).all(axis=1), flush(scales), f32(np.nan))
    is_zero = ~(scales > 0)
    inverse = f32(1) / np.where(is_zero, f32(1), scales)
    integers = np.rint(np.where(is_zero[:, None], f32(0), f32(flush(rows) * inverse[:, None])))
    return integers.astype(np.int64), scales


def int8_dense(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, num_parts: int
) -> torch.Tensor:
    """Return [M, N] float32 of x [M, K], weight [N, K] and bias [N], both quantised to int8."""
    sums = []
    for part, weight_part in zip(
        np.split(x.float().numpy(), num_parts, axis=1),
        np.split(weight.float().numpy(), num_parts, axis=1),
        strict=True,
    ):
        (rows, row_scales), (weights, scales) = quantise(part), quantise(weight_part)
        factors = flush(row_scales[:, None] * scales[None])
        sums.append(flush((rows @ weights.T).astype(np.float32) * factors))
    return add_parts(sums, bias)
