"""Kernels have the bits that docs/numerics.md defines.

On the instruction set at hand: the others have its bits (test_same_bits.py).
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.kernels import definition
from tests.kernels.cache_formats import PLAIN, ROW_SCALE_BYTES, Int8Cache, PlainCache
from tests.kernels.definition import Attention, Floats, widen
from tests.kernels.oracle import DTYPES
from tests.kernels.paged import History, Span, attend
from worker_svc import ops

pytestmark = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return (2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def rounded(x: Floats, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x)).to(dtype)


@pytest.mark.parametrize("size", [1, 63, 64, 100, 777])
def test_norms(dtype: torch.dtype, size: int) -> None:
    x, residual = random(1, size, dtype=dtype), random(1, size, dtype=dtype, seed=1)
    weight, bias = random(size, dtype=dtype, seed=2), random(size, dtype=dtype, seed=3)
    out = torch.empty_like(x)
    wide = widen(x[0]), widen(weight)

    ops.rms_norm(out, x, weight, 1e-5)
    assert torch.equal(out[0], rounded(definition.rms_norm(*wide, 1e-5), dtype))

    ops.layer_norm(out, x, weight, bias, 1e-5)
    assert torch.equal(out[0], rounded(definition.layer_norm(*wide, widen(bias), 1e-5), dtype))

    total = rounded(widen(x) + widen(residual), dtype)
    ops.fused_add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert torch.equal(x[0], rounded(definition.rms_norm(widen(total[0]), wide[1], 1e-5), dtype))


def test_activations(dtype: torch.dtype) -> None:
    x = torch.linspace(-9, 9, 4001).to(dtype)[None]
    gate = random(1, 4001, dtype=dtype)
    for plain, defined in (
        (ops.gelu, definition.gelu),
        (ops.gelu_tanh, definition.gelu_tanh),
        (ops.quick_gelu, definition.quick_gelu),
    ):
        out = torch.empty_like(x)
        plain(out, x)
        assert torch.equal(out, rounded(defined(widen(x)), dtype)), plain
    for gated, defined in (
        (ops.silu_and_mul, definition.silu),
        (ops.gelu_and_mul, definition.gelu),
        (ops.gelu_tanh_and_mul, definition.gelu_tanh),
    ):
        out = torch.empty_like(x)
        gated(out, torch.cat([x, gate], 1))
        assert torch.equal(out, rounded(defined(widen(x)) * widen(gate), dtype)), gated


def test_rotary_embedding(dtype: torch.dtype) -> None:
    query = random(3, 2, 40, dtype=dtype)
    key = query.clone()
    angles = torch.rand(9, 20, generator=torch.Generator().manual_seed(1)) * 6
    cos_sin_cache = torch.cat([angles.cos(), angles.sin()], 1)
    positions = torch.tensor([3, 0, 8])
    a, b = widen(query[..., :20]), widen(query[..., 20:])
    cos, sin = (
        x[positions].numpy()[:, None] for x in (cos_sin_cache[:, :20], cos_sin_cache[:, 20:])
    )
    expected = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    ops.rotary_embedding(positions, query, key, cos_sin_cache, True)
    assert torch.equal(query, rounded(expected, dtype))


@pytest.mark.parametrize("cache", [PLAIN, Int8Cache()], ids=["plain", "int8"])
@pytest.mark.parametrize(
    ("window", "soft_cap", "slope", "sink"),
    [
        (10**6, 0.0, 0.0, None),
        (77, 5.0, 0.0, None),
        (530, 0.0, 0.125, None),
        (128, 0.0, 0.0, 0.3),
        (10**6, 0.0, 0.0, 7.7),
    ],
)
def test_attention(
    dtype: torch.dtype,
    cache: PlainCache,
    window: int,
    soft_cap: float,
    slope: float,
    sink: float | None,
) -> None:
    length, head_size = 600, 40
    history = History.random(length, 1, 1, head_size, dtype, 1)
    encoded = [cache.encode(rows[:, 0]) for rows in (history.key, history.value)]
    scales: list[Floats | None] = [None, None]
    if isinstance(cache, Int8Cache):
        scales = [
            each[:, -ROW_SCALE_BYTES:].contiguous().view(torch.float32)[:, 0].numpy()
            for each in encoded
        ]
        encoded = [each[:, :-ROW_SCALE_BYTES] for each in encoded]
    defined = Attention(
        dtype, widen(encoded[0]), widen(encoded[1]), scales[0], scales[1], head_size**-0.5, window,
        soft_cap, slope, sink,
    )  # fmt: skip
    [actual] = attend(
        [Span(history, 0, length)],
        cache=cache,
        sliding_window=window,
        soft_cap=soft_cap or None,
        alibi_slopes=torch.tensor([slope]) if slope else None,
        sinks=None if sink is None else torch.tensor([sink]),
    )
    for position in (0, 1, 100, 511, 599):
        expected = defined.row(history.query[position, 0], position)
        assert torch.equal(actual[position, 0], expected), position
