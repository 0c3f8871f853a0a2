"""Paged attention against the float64 oracle: shapes, masks and biases."""

from typing import Any

import pytest
import torch

from tests.kernels import oracle
from tests.kernels.cache_formats import PLAIN, PlainCache
from tests.kernels.oracle import DTYPES, UNIT_ROUNDOFF
from tests.kernels.paged import History, Span, attend

# Dot products and exponentials are float32: they move a probability by far less than half precision
# does, and by at most this much.
FLOAT32_NOISE = 2.0**-16


def check(spans: list[Span], dtype: torch.dtype, cache: PlainCache = PLAIN, **options: Any) -> None:
    """Compare a batch with the oracle over what the cache holds.

    Probabilities may be rounded to the dtype before they meet the values, and the result is: two
    roundings, relative to the sum of absolute terms.
    """
    ulps = (2 if dtype != torch.float32 else 0) + FLOAT32_NOISE / UNIT_ROUNDOFF[dtype]
    oracle_options = {
        key: value
        for key, value in options.items()
        if key in ("alibi_slopes", "sliding_window", "soft_cap", "sinks")
    }
    for span, actual in zip(spans, attend(spans, cache=cache, **options), strict=True):
        history = span.history
        expected, magnitude = oracle.attention(
            history.query[span.begin : span.end],
            cache.decode(cache.encode(history.key[: span.end])),
            cache.decode(cache.encode(history.value[: span.end], is_key=False), is_key=False),
            span.begin,
            history.query.shape[2] ** -0.5,
            **oracle_options,
        )
        assert actual.dtype == dtype
        oracle.assert_close(actual, expected, dtype, ulps, magnitude)


def mixed_batch(heads: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> list[Span]:
    """Decodes, chunks, a prefill, and a sequence without rows."""
    bounds = [(0, 1), (76, 77), (0, 40), (30, 67), (129, 130), (12, 12), (63, 65)]
    return [
        Span(History.random(end, heads, kv_heads, head_size, dtype, seed), begin, end)
        for seed, (begin, end) in enumerate(bounds)
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_size", [8, 16, 24, 32, 64, 80, 96, 112, 128, 192, 256])
def test_head_sizes(isa: str, dtype: torch.dtype, head_size: int) -> None:
    check(mixed_batch(4, 2, head_size, dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(1, 1), (3, 3), (5, 1), (8, 1), (6, 2), (16, 2), (12, 4), (71, 1)]
)
def test_groups_of_heads(isa: str, dtype: torch.dtype, heads: int, kv_heads: int) -> None:
    check(mixed_batch(heads, kv_heads, 32, dtype), dtype)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 256])
@pytest.mark.parametrize("token_first", [False, True])
def test_blocks(isa: str, dtype: torch.dtype, block_size: int, token_first: bool) -> None:
    check(mixed_batch(4, 2, 40, dtype), dtype, block_size=block_size, token_first=token_first)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_query_as_a_view_of_a_projection(isa: str, dtype: torch.dtype) -> None:
    check(mixed_batch(4, 2, 48, dtype), dtype, fused_query=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [1, 5, 16, 64, 1000])
def test_sliding_window(isa: str, dtype: torch.dtype, window: int) -> None:
    check(mixed_batch(4, 2, 32, dtype), dtype, sliding_window=window)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alibi(isa: str, dtype: torch.dtype) -> None:
    slopes = torch.tensor([2.0**-i for i in range(1, 7)])
    check(mixed_batch(6, 2, 32, dtype), dtype, alibi_slopes=slopes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_soft_cap(isa: str, dtype: torch.dtype, cap: float) -> None:
    check(mixed_batch(4, 2, 32, dtype), dtype, soft_cap=cap)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_size", [32, 64, 128])
def test_sinks(isa: str, dtype: torch.dtype, head_size: int) -> None:
    """Some far below every logit, some among them, and some above them all."""
    sinks = torch.tensor([-20.0, -1.0, 0.5, 2.0, 4.0, 12.0])
    check(mixed_batch(6, 2, head_size, dtype), dtype, sinks=sinks)
    check(mixed_batch(6, 2, head_size, dtype), dtype, sinks=sinks, sliding_window=16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sink_of_no_weight_and_of_all(isa: str, dtype: torch.dtype) -> None:
    spans = mixed_batch(4, 2, 64, dtype)
    without = attend(spans)
    for lowest in (-torch.inf, -1e30):
        for rows, same in zip(attend(spans, sinks=torch.full((4,), lowest)), without, strict=True):
            assert torch.equal(rows, same)
    for rows in attend(spans, sinks=torch.full((4,), 200.0)):
        assert (rows == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_at_once(isa: str, dtype: torch.dtype) -> None:
    check(
        mixed_batch(6, 2, 80, dtype),
        dtype,
        block_size=8,
        alibi_slopes=torch.tensor([0.5, 0.25, 0.1, 0.05, 0.01, 0.0]),
        sliding_window=37,
        soft_cap=20.0,
        sinks=torch.linspace(-3, 3, 6),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_several_partitions(isa: str, dtype: torch.dtype) -> None:
    long = History.random(1700, 4, 2, 32, dtype, 1)
    short = History.random(513, 4, 2, 32, dtype, 2)
    spans = [Span(long, 1699, 1700), Span(short, 480, 513), Span(long, 1020, 1030)]
    check(spans, dtype)
    check(spans, dtype, sliding_window=600)
    check(spans, dtype, sinks=torch.tensor([-2.0, 0.0, 3.0, 9.0]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extreme_logits(isa: str, dtype: torch.dtype) -> None:
    """One key far above all others takes all the weight, wherever it lies."""
    for place in (0, 63, 64, 300, 599):
        history = History.random(600, 2, 1, 16, dtype, 3)
        history.query.fill_(8.0)
        history.key.fill_(-8.0)
        history.key[place].fill_(8.0)
        [out] = attend([Span(history, 599, 600)], scale=1.0)
        assert torch.equal(out[0, 0], history.value[place, 0])


def test_an_empty_batch_is_fine(isa: str) -> None:
    history = History.random(5, 2, 1, 16, torch.float32, 0)
    [out] = attend([Span(history, 5, 5)])
    assert out.shape == (0, 2, 16)
