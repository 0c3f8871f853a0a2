"""Dense layers as docs/numerics.md defines them, in numpy: slow, and nothing of the kernels."""

import numpy as np
import torch

from tests.kernels.definition import Floats, flush, fma

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
    while len(sums) > 1:
        sums = [flush(a + b) for a, b in zip(sums[::2], sums[1::2], strict=True)]
    total = sums[0]
    if bias is not None:
        total = flush(total + flush(bias.float().numpy()))
    return torch.from_numpy(total)
