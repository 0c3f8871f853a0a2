"""Attention: every instruction set gives the bits of the scalar one."""

from typing import Any

import pytest
import torch

from tests.kernels.cache_formats import PLAIN, Int8Cache, PlainCache
from tests.kernels.oracle import DTYPES
from tests.kernels.paged import History, Span, attend
from tests.kernels.same_bits import check, vectors

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def check_attention(isa: str, spans: list[Span], cache: PlainCache = PLAIN, **options: Any) -> None:
    check(isa, lambda: attend(spans, cache=cache, **options))


caches = pytest.mark.parametrize("cache", [PLAIN, Int8Cache()], ids=["plain", "int8"])


def mixed(history: History) -> list[Span]:
    """A decode, a chunk and a prefill of one history."""
    length = len(history.query)
    return [
        Span(history, length - 1, length),
        Span(history, length // 2 - 7, length // 2),
        Span(history, 0, min(length, 41)),
    ]


@vectors
@dtypes
@caches
@pytest.mark.parametrize("head_size", [8, 16, 24, 40, 64, 72, 80, 96, 104, 128, 192, 256])
def test_head_sizes(vector_isa: str, dtype: torch.dtype, cache: PlainCache, head_size: int) -> None:
    check_attention(vector_isa, mixed(History.random(150, 4, 2, head_size, dtype, 1)), cache)


@vectors
@dtypes
@caches
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 8])
def test_groups_of_heads(
    vector_isa: str, dtype: torch.dtype, cache: PlainCache, group: int
) -> None:
    check_attention(vector_isa, mixed(History.random(131, 2 * group, 2, 48, dtype, 2)), cache)


@vectors
@dtypes
@caches
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 63, 64, 65, 129, 512, 513, 1100])
def test_lengths(vector_isa: str, dtype: torch.dtype, cache: PlainCache, length: int) -> None:
    history = History.random(length, 2, 1, 32, dtype, 3)
    spans = [Span(history, length - 1, length), Span(history, max(0, length - 5), length)]
    check_attention(vector_isa, spans, cache)


@vectors
@dtypes
@caches
@pytest.mark.parametrize(
    "options",
    [
        {"sliding_window": 5},
        {"sliding_window": 77},
        {"alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.05])},
        {"soft_cap": 2.0},
        {"sinks": torch.tensor([-2.0, 0.0, 3.0, 9.0])},
        {"scale": 30.0},
        {
            "alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.0]),
            "sliding_window": 37,
            "soft_cap": 20.0,
            "sinks": torch.tensor([-2.0, 0.0, 3.0, 9.0]),
        },
    ],
    ids=["window", "wide window", "alibi", "cap", "sinks", "peaked", "all"],
)
def test_options(
    vector_isa: str, dtype: torch.dtype, cache: PlainCache, options: dict[str, Any]
) -> None:
    check_attention(vector_isa, mixed(History.random(200, 4, 2, 64, dtype, 4)), cache, **options)


@vectors
@dtypes
@caches
@pytest.mark.parametrize(
    ("of_query", "of_key", "of_value"),
    [
        (2.0**-63, 2.0**-63, 2.0**-124),  # products of denormal size
        (2.0**-127, 1.0, 2.0**-127),  # denormal operands
        (1.0, 2.0**-127, 2.0**-118),  # in int8, the smallest rows that are not zero
        (2.0**60, 2.0**60, 2.0**125),  # sums that overflow
        (2.0**60, 2.0**-58, 2.0**60),
        (2.0**115, 2.0**-120, 1.0),  # close to overflow where integers are widened
    ],
)
def test_magnitudes(
    vector_isa: str,
    dtype: torch.dtype,
    cache: PlainCache,
    of_query: float,
    of_key: float,
    of_value: float,
) -> None:
    ordinary = History.random(150, 4, 2, 64, torch.float32, 5)
    query, key, value = (
        # At most what the type holds: a quantised row has no infinities.
        (rows.double() * scale).clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype)
        for rows, scale in (
            (ordinary.query, of_query),
            (ordinary.key, of_key),
            (ordinary.value, of_value),
        )
    )
    history = History(query, key, value)
    check_attention(vector_isa, mixed(history), cache)


@vectors
@dtypes
@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number(vector_isa: str, dtype: torch.dtype, special: float) -> None:
    history = History.random(150, 4, 2, 64, dtype, 7)
    for rows, place in ((history.query, 130), (history.key, 70), (history.value, 100)):
        changed = rows.clone()
        changed[place, 1, 33] = special
        replaced = [changed if each is rows else each for each in (history.query, history.key)]
        replaced.append(changed if rows is history.value else history.value)
        check_attention(vector_isa, mixed(History(*replaced)))


@vectors
@dtypes
@caches
def test_tokens_of_very_different_sizes(
    vector_isa: str, dtype: torch.dtype, cache: PlainCache
) -> None:
    history = History.random(300, 4, 2, 80, dtype, 6)
    sizes = torch.logspace(-3, 3, 300)[:, None, None]
    history.key.mul_(sizes.flip(0).to(dtype))
    history.value.mul_(sizes.to(dtype))
    check_attention(vector_isa, mixed(history), cache)
