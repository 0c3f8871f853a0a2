"""How long a scheduler lets a step run whose worker reports its limit."""

import pytest

from quire.contract.workers import LONGEST_STEP_S, RunningStep
from scheduler_svc.workers.patience import Patience


def running(limit_ms: int) -> RunningStep:
    return RunningStep(7, 0, waits_for_ranks=False, limit_ms=limit_ms)


def test_a_step_has_its_limit_and_one_of_an_earlier_release_the_longest() -> None:
    patience = Patience()
    assert patience.limit_s(running(2500)) == pytest.approx(2.5)
    assert patience.limit_s(running(0)) == LONGEST_STEP_S


def test_after_one_was_cut_off_steps_have_twice_the_time_for_a_while() -> None:
    patience = Patience()
    for _ in range(2):
        patience.cut_off()
    assert patience.limit_s(running(2500)) == pytest.approx(10.0)
    assert patience.limit_s(running(200_000)) == LONGEST_STEP_S
    for _ in range(1000):
        patience.ended()
    assert patience.limit_s(running(2500)) == pytest.approx(2.5)
