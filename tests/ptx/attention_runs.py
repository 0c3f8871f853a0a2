"""Calls of attention that need every barrier and every wait which its kernels have."""

from collections.abc import Callable

import torch

from tests.kernels import test_attention, test_attention_latent
from tests.kernels.cache_formats import PLAIN, PlainCache
from tests.kernels.paged import History, Span, attend
from tests.ptx import interpreter

Run = Callable[[], None]
BF16, F32 = torch.bfloat16, torch.float32


def attention(head_size: int, dtype: torch.dtype, cache: PlainCache = PLAIN, group: int = 2) -> Run:
    """Decode with partitions that are split and merged, with several in a block, and shared."""

    def run() -> None:
        if cache is PLAIN and head_size <= 128 and dtype != F32:
            sharing(head_size, dtype, group)()
        for sequences, kv_heads in ((1, 2), (12, 2)):
            spans = []
            for seed in range(sequences):
                length = 1100 if seed % 3 == 0 else 70
                heads = group * kv_heads
                history = History.random(length, heads, kv_heads, head_size, dtype, seed)
                spans.append(Span(history, length - 1, length))
            test_attention.check(spans, dtype, cache)

    return run


def sharing(head_size: int, dtype: torch.dtype, group: int) -> Run:
    """Decode behind two partitions, which two blocks of single warps compute for all sequences."""

    def run() -> None:
        with interpreter.single_warps():
            decode_behind(head_size, dtype, group)

    return run


def merges(num_partitions: int) -> Run:
    """Decode with so many partitions, and with few, whose results are merged."""

    def run() -> None:
        for length in (512 * num_partitions - 100, 1100):
            history = History.random(length, 2, 1, 64, BF16, length)
            test_attention.check([Span(history, length - 1, length)], BF16, PLAIN)

    return run


def sharing_on_warpgroups(head_size: int, dtype: torch.dtype, group: int) -> Run:
    """The same by products of warpgroups, of which both have columns if there are 16 of a row."""

    def run() -> None:
        decode_behind(head_size, dtype, group)

    return run


def decode_behind(head_size: int, dtype: torch.dtype, group: int) -> None:
    """Decode rows of sequences that share two partitions, with the bits that each has alone."""
    history = History.random(1100, 2 * group, 2, head_size, dtype, 0)
    spans = [Span(history, end - 1, end) for end in (1030, 1100, 1040, 1025, 1060)]
    together = attend(spans, shared_tokens=1024)
    for span, rows in zip(spans, together, strict=True):
        assert torch.equal(attend([span])[0], rows)


def prompt(head_size: int, dtype: torch.dtype) -> Run:
    """Compute rows of partitions that are split and merged, and a short prompt, by single warps."""

    def run() -> None:
        with interpreter.single_warps():
            attend_to_prompts(head_size, dtype)

    return run


def prompt_on_warpgroups(head_size: int, dtype: torch.dtype) -> Run:
    """Compute the same by products of warpgroups, with the same bits."""

    def run() -> None:
        actual = attend_to_prompts(head_size, dtype)
        with interpreter.single_warps():
            expected = attend_to_prompts(head_size, dtype)
        for rows, same in zip(actual, expected, strict=True):
            assert torch.equal(rows, same)

    return run


def attend_to_prompts(head_size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the rows of two prompts, which are right."""
    spans = []
    for seed, (begin, end) in enumerate(((1070, 1100), (0, 40))):
        history = History.random(end, 8, 2, head_size, dtype, seed)
        spans.append(Span(history, begin, end))
    test_attention.check(spans, dtype, PLAIN)
    return attend(spans)


def latent(heads: int, dtype: torch.dtype) -> Run:
    """Attend to latent rows, of partitions that are split and merged, and several in a block."""

    def run() -> None:
        for bounds in (((1099, 1100),), ((1099, 1100), (600, 601), (0, 2), (69, 70), (30, 31))):
            test_attention.check(test_attention_latent.batch(heads, dtype, *bounds), dtype)

    return run
