"""Paged attention over quantised caches against the oracle over what the caches mean."""

from typing import Any

import pytest
import torch

from tests.kernels.cache_formats import quantised_cache
from tests.kernels.oracle import DTYPES
from tests.kernels.paged import History, Span, attend
from tests.kernels.test_attention import check, mixed_batch

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@every_dtype
@pytest.mark.parametrize("head_size", [8, 16, 24, 32, 40, 64, 80, 96, 112, 128, 192, 256])
def test_head_sizes(isa: str, dtype: torch.dtype, head_size: int) -> None:
    check(mixed_batch(4, 2, head_size, dtype), dtype, quantised_cache(isa))


@every_dtype
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (5, 1), (16, 2), (12, 4), (71, 1)])
def test_groups_of_heads(isa: str, dtype: torch.dtype, heads: int, kv_heads: int) -> None:
    check(mixed_batch(heads, kv_heads, 64, dtype), dtype, quantised_cache(isa))


@pytest.mark.pairwise
@every_dtype
@pytest.mark.parametrize("block_size", [8, 32, 256])
@pytest.mark.parametrize("token_first", [False, True])
def test_blocks(isa: str, dtype: torch.dtype, block_size: int, token_first: bool) -> None:
    check(
        mixed_batch(4, 2, 80, dtype),
        dtype,
        quantised_cache(isa),
        block_size=block_size,
        token_first=token_first,
    )


@every_dtype
@pytest.mark.parametrize(
    "options",
    [
        {"fused_query": True},
        {"sliding_window": 5},
        {"alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.05])},
        {"soft_cap": 2.0},
        {
            "alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.0]),
            "sliding_window": 37,
            "soft_cap": 20.0,
        },
    ],
    ids=["fused_query", "window", "alibi", "cap", "all"],
)
def test_options(isa: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    check(mixed_batch(4, 2, 64, dtype), dtype, quantised_cache(isa), **options)


@every_dtype
def test_several_partitions(isa: str, dtype: torch.dtype) -> None:
    long = History.random(1700, 4, 2, 64, dtype, 1)
    short = History.random(513, 4, 2, 64, dtype, 2)
    spans = [Span(long, 1699, 1700), Span(short, 480, 513), Span(long, 1020, 1030)]
    check(spans, dtype, quantised_cache(isa))
    check(spans, dtype, quantised_cache(isa), sliding_window=600)


@every_dtype
def test_tokens_of_very_different_sizes(isa: str, dtype: torch.dtype) -> None:
    """Each token is as precise as it would be alone."""
    history = History.random(150, 4, 2, 64, dtype, 3)
    history.key[::3] *= 0.01
    history.value[::5] *= 30
    history.key[7] = 0
    history.value[8] = 0
    check([Span(history, 0, 40), Span(history, 149, 150)], dtype, quantised_cache(isa))


@every_dtype
def test_is_near_attention_over_what_was_given(isa: str, dtype: torch.dtype) -> None:
    """A bound on what quantisation costs, at the usual size of heads."""
    history = History.random(300, 4, 2, 128, dtype, 4)
    spans = [Span(history, 299, 300)]
    cache = quantised_cache(isa)
    [exact], [actual] = attend(spans), attend(spans, cache=cache)
    error = (actual.double() - exact.double()).norm() / exact.double().norm()
    assert error < cache.relative_error
