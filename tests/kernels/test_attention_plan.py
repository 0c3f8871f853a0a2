"""A plan that is made again and again, as a captured graph wants it."""

import pytest
import torch

from tests.kernels.paged import FixedPlan, History, Span, attend
from worker_svc import ops

MAX_SEQ_LEN = 1200


def decoding(lengths: tuple[int, ...], kv_heads: int = 2) -> list[Span]:
    """Return the last row of sequences of some lengths; one of length 0 has no row."""
    spans = []
    for seed, length in enumerate(lengths):
        history = History.random(max(length, 1), 4, kv_heads, 64, torch.bfloat16, seed)
        spans.append(Span(history, max(length - 1, 0), length))
    return spans


@pytest.mark.parametrize("window", [None, 700])
def test_steps_of_other_lengths(isa: str, window: int | None) -> None:
    plan = FixedPlan(MAX_SEQ_LEN)
    made = None
    # Little work, which is split, and much; sequences that are not there.
    for lengths in [(1, 1, 1), (1200, 3, 0), (513, 1200, 512), (0, 0, 7)]:
        spans = decoding(lengths)
        fixed = attend(spans, fixed_plan=plan, sliding_window=window)
        own = attend(spans, sliding_window=window)
        assert all(torch.equal(a, b) for a, b in zip(fixed, own, strict=True))
        made = made or plan.plan
        assert plan.plan is made


@pytest.mark.parametrize("kv_heads", [2, 6])
def test_steps_that_share_blocks_and_do_not(isa: str, kv_heads: int) -> None:
    """With a launch more where they do, in one memory."""
    plan = FixedPlan(MAX_SEQ_LEN)
    history = History.random(1200, 4 * kv_heads, kv_heads, 64, torch.bfloat16, 0)
    found = []
    for ends, shared_tokens in (
        ((600, 1200, 700, 540, 513, 650), 512),
        ((600, 1200, 700, 540, 513, 650), 0),
        ((1100, 1200, 0, 1030, 1060, 1090), 1030),
        ((1100, 1200, 0, 0, 0, 900), 1030),
        ((600, 1200, 700, 650, 513, 650), 600),
    ):
        spans = [Span(history, max(end - 1, 0), end) for end in ends]
        fixed = attend(spans, fixed_plan=plan, shared_tokens=shared_tokens)
        for span, rows in zip(spans, fixed, strict=True):
            if span.end > 0:
                assert torch.equal(attend([span])[0], rows)
        found.append(plan.plan is not None and plan.plan.shared_blocks > 0)
    # A device of many multiprocessors reads so little apart.
    assert found in ([True, False, True, False, True], [False] * 5)


@pytest.mark.parametrize("head_size", [64, 80])
def test_mixed_steps(isa: str, head_size: int) -> None:
    """Chunks and drafts beside sequences that decode, of as many rows in all."""
    plan = FixedPlan(MAX_SEQ_LEN, max_query_len=48)
    launches = []
    for step in (
        [(1200, 1), (300, 40), (5, 5), (0, 0), (700, 1), (1, 1)],
        [(1, 1), (600, 1), (90, 46), (0, 0), (0, 0), (0, 0)],
        [(1200, 40), (1, 1), (3, 1), (700, 5), (0, 0), (40, 1)],
        [(500, 8)] * 6,
    ):
        spans = []
        for seed, (length, rows) in enumerate(step):
            history = History.random(max(length, 1), 4, 2, head_size, torch.bfloat16, seed)
            spans.append(Span(history, length - rows, length))
        fixed, own = attend(spans, fixed_plan=plan), attend(spans)
        assert all(torch.equal(a, b) for a, b in zip(fixed, own, strict=True))
        launches.append(None if plan.plan is None else tuple(plan.plan.launches))
    # Drafts alone are no prompts.
    assert launches[0] is None or launches[3] != launches[0]


def test_more_tiles_than_blocks_at_once(isa: str) -> None:
    plan = FixedPlan(MAX_SEQ_LEN)
    for lengths in [(600, 1, 30, 40, 50), (1200, 0, 0, 0, 0)]:
        spans = decoding(lengths)
        fixed, own = attend(spans, fixed_plan=plan), attend(spans)
        assert all(torch.equal(a, b) for a, b in zip(fixed, own, strict=True))


def test_what_does_not_fit_is_refused(isa: str) -> None:
    plan = FixedPlan(100)
    attend(decoding((50, 60)), fixed_plan=plan)
    if plan.plan is None:
        return  # nothing is planned here
    with pytest.raises(ValueError, match=r"seq_lens\[1\]: must be in \[0, 101\), got 120"):
        attend(decoding((50, 120)), fixed_plan=plan)
    with pytest.raises(ValueError, match="launch: must be"):
        attend(decoding((50, 60, 70)), fixed_plan=plan)
    several_rows = [Span(decoding((50,))[0].history, 40, 50)]
    with pytest.raises(ValueError, match="rows of sequence"):
        attend(several_rows, fixed_plan=FixedPlan(100))


def test_a_plan_of_no_length_is_refused(isa: str) -> None:
    query = torch.zeros(1, 4, 64, dtype=torch.bfloat16)
    cache = torch.zeros(2, 2, 16, 64, dtype=torch.bfloat16)
    sizes = torch.tensor([1]).int(), torch.tensor([0, 1]).int()
    for option in ("max_seq_len", "max_query_len"):
        with pytest.raises(ValueError, match=f"{option}: must be at least 1, got 0"):
            ops.plan_attention(query, cache, cache, *sizes, **{option: 0})
