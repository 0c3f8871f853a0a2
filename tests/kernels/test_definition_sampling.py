"""Tokens are drawn as docs/numerics.md defines."""

import numpy as np
import pytest
import torch

from tests.kernels.definition import EXP, LOG2_E, Floats, f32, fma, polynomial, power
from worker_svc import ops

LOG = (3.333331645e-01, -2.500081062e-01, 2.000228614e-01, -1.662455350e-01, 1.418119669e-01,
       -1.312876791e-01, 1.288162172e-01, -7.859545946e-02)  # fmt: skip
VOCAB_SIZE = 1003


def e(x: Floats) -> Floats:
    """e^x for x of at most 0."""
    clamped = np.maximum(x, f32(-88))
    n = np.rint(clamped * LOG2_E)
    r = fma(n, f32(2.12194440e-4), fma(n, f32(-0.693359375), clamped))
    value = (fma(polynomial(EXP, r) * r, r, r) + f32(1)) * power(n)
    return np.where(x > -87, value, f32(0))


def exponential(words: np.ndarray) -> Floats:
    """E of the words of random bits."""
    v = fma(words.astype(np.float32), f32(2.0**-32), f32(2.0**-33))
    u = fma((~words).astype(np.float32), f32(2.0**-32), f32(2.0**-33))
    mantissa, k = np.frexp(u)
    is_small = mantissa < f32(0.5**0.5)
    mantissa, k = np.where(is_small, mantissa * 2, mantissa), np.where(is_small, k - 1, k)
    f = np.where(k == 0, -v, mantissa - f32(1))
    log1p = fma(fma(polynomial(LOG, f), f, f32(-0.5)), f * f, f)
    return -fma(k.astype(np.float32), f32(0.693147182), log1p)


def draw(x: Floats, seed: int, sequence_index: int, position: int) -> int:
    """The token that wins the race."""
    key = (seed & 0xFFFFFFFF, seed >> 32)
    words = [
        ops.philox4x32((i, sequence_index, position & 0xFFFFFFFF, position >> 32), key)
        for i in range(-(-len(x) // 4))
    ]
    random = np.array(words, np.uint32).reshape(-1)[: len(x)]
    return int(np.argmax(e(x) / exponential(random)))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draw(temperature: float) -> None:
    rows = 40
    logits = 3 * torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    seeds = [977 + (i << 40) for i in range(rows)]
    ones = torch.ones(rows)
    tokens, ok = ops.sample(
        logits,
        temperature * ones,
        torch.zeros(rows, dtype=torch.int32),
        ones,
        0 * ones,
        torch.tensor(seeds),
        torch.arange(rows, dtype=torch.int32),
        torch.full((rows,), 2**32 + 5),
    )
    assert ok.all()
    for i, row in enumerate(logits.numpy()):
        x = (row - row.max()) / f32(temperature)
        assert tokens[i] == draw(x, seeds[i], i, 2**32 + 5)


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(9, 1.0, 0.0), (0, 0.8, 0.0), (30, 0.9, 0.01)]
)
def test_filters(top_k: int, top_p: float, min_p: float) -> None:
    """What is drawn is what the race gives among the tokens that the definition keeps."""
    rows = 40
    logits = 3 * torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(2))
    ones = torch.ones(rows)
    tokens, _ = ops.sample(
        logits,
        ones,
        torch.full((rows,), top_k, dtype=torch.int32),
        top_p * ones,
        min_p * ones,
        torch.arange(rows),
        torch.zeros(rows, dtype=torch.int32),
        torch.zeros(rows, dtype=torch.int64),
    )
    for i, row in enumerate(logits.numpy()):
        x = row - row.max()
        order = np.lexsort((np.arange(VOCAB_SIZE), -x))
        if min_p:
            order = order[x[order] >= f32(np.log(min_p))]
        if top_k:
            order = order[:top_k]
        if top_p < 1:
            weights = np.floor(e(x[order]).astype(np.float64) * 2**40).astype(np.int64)
            target = max(1, int(np.ceil(np.float64(f32(top_p)) * np.float64(weights.sum()))))
            order = order[: int(np.searchsorted(weights.cumsum(), target)) + 1]
        kept = np.full(VOCAB_SIZE, -100, np.float32)
        kept[order] = x[order]
        assert tokens[i] == draw(kept, i, 0, 0)
