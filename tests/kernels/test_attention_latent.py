"""Latent attention on tensor cores: one cached row for all heads, whose first part is the value."""

from typing import Any

import pytest
import torch

from tests.kernels.oracle import DTYPES
from tests.kernels.paged import FixedPlan, History, Span, attend
from tests.kernels.test_attention import check
from worker_svc import ops

KEY_SIZE, VALUE_SIZE = 576, 512
LENGTH, FIRST = 600, 585
OPTIONS: list[dict[str, Any]] = [
    {},
    {"sliding_window": 300, "sinks": torch.linspace(-2, 9, 16)},
    {"soft_cap": 10.0, "alibi_slopes": torch.logspace(-1, -8, 16, 2)},
]

dtypes = pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
options = pytest.mark.parametrize("options", OPTIONS, ids=["plain", "sinks", "cap_and_alibi"])


def random_history(length: int, heads: int, dtype: torch.dtype, seed: int = 0) -> History:
    history = History.random(length, heads, 1, KEY_SIZE, dtype, seed)
    return history.with_values(VALUE_SIZE, of_keys=True)


def batch(heads: int, dtype: torch.dtype, *bounds: tuple[int, int]) -> list[Span]:
    return [
        Span(random_history(end, heads, dtype, seed), begin, end)
        for seed, (begin, end) in enumerate(bounds, 1)
    ]


def first_heads(history: History, heads: int) -> History:
    return History(history.query[:, :heads].contiguous(), history.key, history.value)


@dtypes
@pytest.mark.parametrize("heads", [1, 3, 16, 17, 32, 40, 64, 128])
def test_numbers_of_heads(cuda_isa: str, dtype: torch.dtype, heads: int) -> None:
    check(batch(heads, dtype, (76, 77), (0, 1), (30, 35), (12, 12), (540, 541)), dtype)


@pytest.mark.pairwise
@dtypes
@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("token_first", [False, True])
@pytest.mark.parametrize("heads", [4, 20])
def test_blocks(
    cuda_isa: str, dtype: torch.dtype, block_size: int, token_first: bool, heads: int
) -> None:
    spans = batch(heads, dtype, (299, 300), (0, 37), (63, 70))
    check(spans, dtype, block_size=block_size, token_first=token_first, fused_query=True)


@dtypes
@pytest.mark.parametrize("heads", [16, 33])
def test_long_contexts_are_split(cuda_isa: str, dtype: torch.dtype, heads: int) -> None:
    """One whose partitions several blocks have, alone and beside others."""
    [long, *mates] = batch(heads, dtype, (2599, 2600), (511, 512), (512, 513), (1023, 1025))
    check([long], dtype)
    check([long, *mates], dtype)


@dtypes
@options
def test_chunks_and_decodes(cuda_isa: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    """Rows of 16 heads: blocks of 16 columns have one row of them, blocks of 32 two."""
    history = random_history(LENGTH, 16, dtype)
    [whole] = attend([Span(history, FIRST, LENGTH)], **options)
    chunks = [(FIRST, 586), (586, 588), (588, LENGTH)]
    parts = [attend([Span(history, *chunk)], **options)[0] for chunk in chunks]
    assert torch.equal(torch.cat(parts), whole)
    for row in (585, 588, 599):
        [decoded] = attend([Span(history, row, row + 1)], block_size=64, **options)
        assert torch.equal(decoded[0], whole[row - FIRST])


@dtypes
@options
def test_in_company(cuda_isa: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    span = Span(random_history(LENGTH, 16, dtype), LENGTH - 1, LENGTH)
    [alone] = attend([span], **options)
    mates = batch(16, dtype, (0, 5), (540, 541), (0, 3), (510, 515), (30, 37))
    for place in (0, 3):
        together = attend([*mates[:place], span, *mates[place:]], seed=place, **options)
        assert torch.equal(together[place], alone)


@dtypes
def test_ranks_that_share_heads(cuda_isa: str, dtype: torch.dtype) -> None:
    """A head has its bits among any others: cut over ranks, and in blocks of either width."""
    history = random_history(600, 40, dtype)
    [whole] = attend([Span(history, 598, 600)])
    for heads in (1, 7, 16, 17, 20):
        [part] = attend([Span(first_heads(history, heads), 598, 600)])
        assert torch.equal(part, whole[:, :heads]), heads


@dtypes
@pytest.mark.parametrize("heads", [16, 40])
def test_fixed_plans(cuda_isa: str, dtype: torch.dtype, heads: int) -> None:
    """A plan of a captured graph serves batch after batch."""
    fixed = FixedPlan(1500)
    for seed, ends in enumerate(((1400, 3, 513), (64, 1500, 512), (1, 2, 3))):
        spans = [
            Span(random_history(end, heads, dtype, 3 * seed + i), end - 1, end)
            for i, end in enumerate(ends)
        ]
        together = attend(spans, fixed_plan=fixed)
        for span, rows in zip(spans, together, strict=True):
            assert torch.equal(attend([span])[0], rows)
    spans = batch(heads, dtype, (1500, 1501), (0, 1), (0, 1))
    with pytest.raises(ValueError, match=r"seq_lens\[0\]: must be in \[0, 1501\)"):
        attend(spans, fixed_plan=fixed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_other_caches_are_served_without_a_plan(cuda_isa: str, dtype: torch.dtype) -> None:
    """Float32, and values that lie elsewhere."""
    query = torch.zeros(1, 16, KEY_SIZE, dtype=dtype)
    keys = torch.zeros(2, 1, 16, KEY_SIZE, dtype=dtype)
    lengths, starts = torch.tensor([5]).int(), torch.tensor([0, 1]).int()

    def has_plan(values: torch.Tensor) -> bool:
        return ops.plan_attention(query, keys, values, lengths, starts) is not None

    assert has_plan(keys[..., :VALUE_SIZE]) == (dtype != torch.float32)
    assert not has_plan(keys[..., 64:])
    assert not has_plan(keys[..., :VALUE_SIZE].clone())
    assert not has_plan(keys[..., :256])
    history = History.random(70, 16, 1, KEY_SIZE, dtype, 0)
    apart = history.with_values(VALUE_SIZE, of_keys=False)
    check([Span(apart, 66, 70), Span(apart, 33, 34)], dtype)
