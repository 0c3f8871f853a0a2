"""Dense layers as docs/numerics.md defines them, in numpy: slow, and nothing of the kernels."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

CHUNK = 256
SMALLEST_NORMAL = np.float32(2.0**-126)

Floats: TypeAlias = npt.NDArray[np.float32]
Doubles: TypeAlias = npt.NDArray[np.float64]


def flushed(x: Floats) -> Floats:
    """Denormals become zeros of their sign."""
    zero = np.copysign(np.float32(0), x)
    return np.where(np.abs(x) < SMALLEST_NORMAL, zero, x)


def fused_multiply_add(a: Floats, b: Floats, c: Floats) -> Floats:
    """Round a * b + c once, to float32.

    In float64 the product is exact and the sum is not. Rounded to odd there, it rounds to float32
    as the exact sum would (Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded
    sums").
    """
    product: Doubles = flushed(a).astype(np.float64) * flushed(b)
    addend: Doubles = flushed(c).astype(np.float64)
    total = product + addend
    # What the sum has lost, exactly: Knuth's two-sum.
    virtual = total - product
    lost = (product - (total - virtual)) + (addend - virtual)
    is_even = total.view(np.int64) % 2 == 0
    towards = np.where(lost > 0, np.inf, -np.inf)
    odd = np.where((lost != 0) & is_even, np.nextafter(total, towards), total)
    return flushed(odd.astype(np.float32))


def sum_of_part(x: Floats, weight: Floats) -> Floats:
    """Return [M, N] of a part [M, L] and [N, L]."""
    total = None
    for first in range(0, x.shape[1], CHUNK):
        chunk = np.zeros((len(x), len(weight)), np.float32)
        for k in range(first, min(first + CHUNK, x.shape[1]), 2):
            for each in (k + 1, k):  # the odd element of a pair first
                chunk = fused_multiply_add(x[:, None, each], weight[None, :, each], chunk)
        total = chunk if total is None else flushed(total + chunk)
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
        sums = [flushed(a + b) for a, b in zip(sums[::2], sums[1::2], strict=True)]
    total = sums[0]
    if bias is not None:
        total = flushed(total + flushed(bias.float().numpy()))
    return torch.from_numpy(total)
