"""Quotas of tenants at a cell: what buckets hold, what is refused, and when to come back."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.contract.errors import ConfigError, QuotaExceededError
from quire.contract.quotas import MAX_QUOTA, UNLIMITED, Quotas
from quire.contract.sessions import Submission
from scheduler_svc.policy.quotas import (
    MAX_IDLE,
    MAX_RETRY_MS,
    MINUTE_S,
    RETRY_CONCURRENT_MS,
    SETTLE_S,
    Bucket,
    QuotaKeeper,
)
from tests.unit.scheduler.factories import Cell, make_params, make_prompt


class Keeping:
    """A cell whose tenants have quotas."""

    def __init__(self, quotas: Quotas = UNLIMITED, num_cells: int = 1, **settings: int) -> None:
        self.cell = Cell(**settings)
        self.keeper = QuotaKeeper(self.cell.scheduler.queues)
        self.quotas = quotas
        self.num_cells = num_cells
        self.now = 100.0

    def ask(
        self, num_prompt: int = 4, max_tokens: int = 4, tenant: str = "alice", **others: object
    ) -> QuotaExceededError | None:
        """Queue a request, and return how it was refused, if it was."""
        options = {"tenant": tenant, "quotas": self.quotas, "num_cells": self.num_cells, **others}
        params, prompt = make_params(max_tokens=max_tokens), make_prompt(num_prompt)
        submission = Submission(prompt, params, **options)  # type: ignore[arg-type]
        try:
            self.keeper.check(submission, self.now)
        except QuotaExceededError as error:
            return error
        self.cell.add(prompt, params, **options)  # type: ignore[arg-type]
        self.keeper.admitted(submission, self.now)
        return None

    def refusal(self, **options: object) -> str:
        error = self.ask(**options)  # type: ignore[arg-type]
        assert error is not None
        return error.message

    def run(self) -> None:
        """Run what is queued, and have it counted."""
        self.cell.run()
        self.settle()

    def settle(self) -> None:
        self.keeper._settled = float("-inf")
        self.keeper.settle(self.now)

    def level_of_tokens(self, tenant: str = "alice") -> float:
        bucket = self.keeper._of[tenant].tokens
        assert bucket is not None
        return bucket.level


def most_in(times: list[float], window_s: float) -> int:
    return max((sum(start <= t <= start + window_s for t in times) for start in times), default=0)


# ---------------------------------------------------------------- rates


@settings(max_examples=60)
@given(
    st.integers(1, 90),
    st.integers(1, 5),
    st.lists(st.floats(0, 20) | st.sampled_from([0.0, 0.0, 1.0, 60.0]), max_size=120),
    st.floats(0, 300),
)
def test_over_any_time_cells_admit_together_the_quota_and_a_burst(
    quota: int, num_cells: int, gaps: list[float], window_s: float
) -> None:
    cells = [Keeping(Quotas(quota), num_cells, num_blocks=1024) for _ in range(num_cells)]
    admitted, now = [], 100.0
    for gap in gaps:
        now += gap
        for cell in cells:
            cell.now = now
            if cell.ask() is None:
                admitted.append(now)
    burst = num_cells * max(1.0, quota / num_cells)
    assert most_in(admitted, window_s) <= quota * window_s / MINUTE_S + burst + 1e-3


@settings(max_examples=60)
@given(
    st.integers(1, 300),
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 40), st.integers(1, 40)), max_size=25),
    st.floats(0, 300),
)
def test_over_any_time_a_tenant_gets_the_quota_a_burst_and_the_end_of_one_request(
    quota: int, requests: list[tuple[float, int, int]], window_s: float
) -> None:
    keeping = Keeping(Quotas(max_tokens_per_minute=quota))
    charges = []
    for gap, num_prompt, max_tokens in requests:
        keeping.now += gap
        if keeping.ask(num_prompt, max_tokens) is None:
            keeping.run()
            # Of the output the last token is not computed.
            charges.append((keeping.now, num_prompt + max_tokens - 1))
    largest = max((number for _, number in charges), default=0)
    for start, _ in charges:
        charged = sum(n for time, n in charges if start <= time <= start + window_s)
        assert charged <= quota * window_s / MINUTE_S + quota + largest + 1e-3


@given(st.integers(1, 500), st.integers(1, 9), st.floats(0, 59))
def test_a_refused_request_is_admitted_when_it_was_told_to_come_back(
    quota: int, num_cells: int, gap: float
) -> None:
    keeper = Keeping(Quotas(quota), num_cells).keeper
    submission = Submission(
        [5], make_params(), tenant="alice", quotas=Quotas(quota), num_cells=num_cells
    )

    def error(now: float) -> QuotaExceededError | None:
        try:
            keeper.check(submission, now)
        except QuotaExceededError as refusal:
            return refusal
        return None

    now, num_admitted = 100.0 + gap, 0
    while (refusal := error(now)) is None:
        keeper.admitted(submission, now)
        num_admitted += 1
    assert num_admitted == max(1, quota // num_cells)
    later = now + refusal.retry_after_ms / 1e3
    assert error(later - 0.002) is not None
    assert error(later) is None


@pytest.mark.parametrize(
    ("quota", "num_cells", "num_admitted", "message"),
    [
        (60, 1, 60, "requests per minute: must be at most 60, got 61"),
        (60, 2, 30, "requests per minute: must be at most 60 (30 at each of 2 cells), got 31"),
        (7, 3, 2, "requests per minute: must be at most 7 (2 at each of 3 cells), got 3"),
        (1, 4, 1, "requests per minute: must be at most 1 (1 at each of 4 cells), got 2"),
    ],
)
def test_a_refusal_names_quota_limit_part_and_value(
    quota: int, num_cells: int, num_admitted: int, message: str
) -> None:
    keeping = Keeping(Quotas(quota), num_cells, num_blocks=1024)
    assert [keeping.ask() for _ in range(num_admitted)] == [None] * num_admitted
    assert keeping.refusal() == message
    assert keeping.keeper.num_refused == {("alice", "requests_per_minute"): 1}
    assert keeping.ask(tenant="bob") is None


def test_a_bucket_is_never_fuller_than_full_and_may_owe_for_long() -> None:
    bucket = Bucket(60.0, now=0.0)
    bucket.advance(1000.0)
    assert bucket.level == bucket.capacity == 60
    bucket.level -= 90
    assert bucket.ms_until(1) == 31_000
    bucket.advance(1031.0)
    assert bucket.level == pytest.approx(1)
    bucket.set_rate(30.0)
    assert (bucket.level, bucket.ms_until(2)) == (pytest.approx(1), pytest.approx(2000, abs=1))
    bucket.level -= 1e9
    assert bucket.ms_until(1) == MAX_RETRY_MS


def test_a_smaller_quota_holds_at_once_and_a_larger_one_fills() -> None:
    keeping = Keeping(Quotas(60), num_blocks=1024)
    assert keeping.ask() is None
    keeping.quotas = Quotas(2)
    assert [keeping.ask() is None for _ in range(3)] == [True, True, False]
    keeping.quotas = Quotas(60)
    assert keeping.ask() is not None
    keeping.now += 1
    assert keeping.ask() is None
    keeping.quotas = UNLIMITED
    assert [keeping.ask() for _ in range(9)] == [None] * 9


# ---------------------------------------------------------------- tokens


def test_what_a_long_answer_takes_beyond_the_quota_is_owed() -> None:
    keeping = Keeping(Quotas(max_tokens_per_minute=60))
    assert keeping.ask(num_prompt=10, max_tokens=101) is None
    keeping.run()
    assert keeping.level_of_tokens() == 60 - 110
    error = keeping.ask()
    assert error is not None
    assert error.message == "tokens per minute: must be at most 60, got 111"
    assert error.retry_after_ms == 51_000
    keeping.now += 51
    assert keeping.ask() is None


def test_tokens_are_counted_while_a_request_runs() -> None:
    keeping = Keeping(Quotas(max_tokens_per_minute=30))
    assert keeping.ask(num_prompt=4, max_tokens=100) is None
    for _ in range(40):
        keeping.cell.step()
    assert keeping.ask() is not None
    assert keeping.level_of_tokens() < 0
    keeping.cell.step()
    counted = keeping.level_of_tokens()
    keeping.keeper.settle(keeping.now + SETTLE_S / 2)  # too soon
    assert keeping.level_of_tokens() == counted
    keeping.keeper.settle(keeping.now + SETTLE_S)
    assert keeping.level_of_tokens() == pytest.approx(counted - 1 + 30 * SETTLE_S / MINUTE_S)


def test_what_has_ended_is_counted_at_once() -> None:
    keeping = Keeping(Quotas(max_tokens_per_minute=20))
    for max_tokens in (2, 50):
        assert keeping.ask(num_prompt=1, max_tokens=max_tokens) is None
        keeping.cell.run()
    assert keeping.ask() is not None


def test_prompts_that_wait_count_so_that_a_burst_is_not_free() -> None:
    keeping = Keeping(Quotas(max_tokens_per_minute=100))
    assert [keeping.ask(num_prompt=40) is None for _ in range(5)] == [True] * 3 + [False] * 2
    assert keeping.keeper.num_refused == {("alice", "tokens_per_minute"): 2}


def test_a_prefix_in_the_cache_is_free() -> None:
    keeping = Keeping(Quotas(max_tokens_per_minute=100), enable_prefix_caching=True)
    for expected in (100 - 41, 100 - 41 - 1):
        assert keeping.ask(num_prompt=41, max_tokens=1) is None
        keeping.run()
        assert keeping.level_of_tokens() == expected


def test_what_was_charged_before_there_was_a_quota_does_not_count() -> None:
    keeping = Keeping()
    keeping.ask(max_tokens=50)
    keeping.run()
    keeping.quotas = Quotas(max_tokens_per_minute=20)
    assert keeping.ask() is None


# ---------------------------------------------------------------- requests at once


@pytest.mark.parametrize(("quota", "num_cells"), [*product((1, 2, 5, 8), (1, 2, 3, 8))])
def test_a_cell_has_room_for_its_part_rounded_down_but_for_one(quota: int, num_cells: int) -> None:
    keeping = Keeping(Quotas(max_concurrent=quota), num_cells)
    room = max(1, quota // num_cells)
    assert [keeping.ask() for _ in range(room)] == [None] * room
    error = keeping.ask()
    assert error is not None
    assert error.message.startswith(f"concurrent: must be at most {quota}")
    assert error.message.endswith(f", got {room + 1}")
    assert error.retry_after_ms == RETRY_CONCURRENT_MS
    keeping.run()
    assert keeping.ask() is None


# ---------------------------------------------------------------- what goes on


def test_what_was_moved_here_is_not_refused_and_its_tokens_count() -> None:
    keeping = Keeping(Quotas(1, 10, 1))
    assert keeping.ask(max_tokens=20) is None
    moved = {"outputs": {0: (5, 6)}, "was_queued": True, "max_tokens": 20}
    assert keeping.ask(**moved) is None
    assert keeping.ask(max_tokens=20, was_queued=True) is None
    keeping.run()
    # Prompts are paid for where a request was queued first, as are the tokens from there.
    assert keeping.level_of_tokens() == 10 - (4 + 19) - 17 - 19
    assert keeping.ask(**moved) is None
    assert not keeping.keeper.num_refused


def test_what_a_client_resumes_is_not_counted_as_a_request_but_held_to_twice_the_rest() -> None:
    resumed = {"outputs": {0: (5, 6)}, "max_tokens": 12}
    keeping = Keeping(Quotas(1, None, 2))
    assert [keeping.ask(**resumed) is None for _ in range(5)] == [True] * 4 + [False]
    keeping.run()
    assert keeping.ask() is None
    assert keeping.ask(**resumed) is None

    keeping = Keeping(Quotas(max_tokens_per_minute=20))
    num_taken = 0
    while keeping.ask(**resumed) is None:
        keeping.run()
        num_taken += 1
    # The prompt and what it brings are computed again: 4 + 12 - 1 tokens each.
    assert num_taken == 3
    assert keeping.level_of_tokens() == 20 - 45


def test_the_refused_and_what_cannot_run_take_nothing() -> None:
    keeping = Keeping(Quotas(2, None, 1))
    assert keeping.ask() is None
    for _ in range(5):
        assert "concurrent" in keeping.refusal()
    keeping.run()
    assert keeping.ask() is None


def test_tenants_that_have_used_up_nothing_are_forgotten() -> None:
    keeping = Keeping(Quotas(6, 60))
    for number in range(MAX_IDLE):
        keeping.ask(tenant=f"t{number}")
    keeping.run()
    assert len(keeping.keeper._of) == MAX_IDLE
    keeping.now += MINUTE_S
    keeping.quotas = Quotas(1)
    assert keeping.ask(tenant="busy") is None
    assert list(keeping.keeper._of) == ["busy"]
    assert keeping.ask(tenant="busy") is not None


# ---------------------------------------------------------------- the values


@pytest.mark.parametrize("name", Quotas.__dataclass_fields__)
@pytest.mark.parametrize("value", [0, -1, MAX_QUOTA + 1])
def test_a_quota_is_at_least_one(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: must be in \[1, 4294967295\], got {value}"):
        Quotas(**{name: value})
    assert Quotas(**{name: 1})
    assert not Quotas()
