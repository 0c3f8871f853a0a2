"""Counters of a worker: what a step adds, and a step that hangs."""

import pytest

from quire.contract.steps import StepResult
from worker_svc.service import counters as module
from worker_svc.service.counters import Counters


def test_a_step_adds_what_it_took_and_brought() -> None:
    counters = Counters()
    result = StepResult((4, 5), (7, 8), (6,), model_us=300, sample_us=20, worker_us=400, swap_us=1)
    for _ in range(2):
        counters.count(result, num_tokens=33, num_failed=(1, 2), elapsed_s=0.0005)
    assert (counters.model_us, counters.sample_us, counters.swap_us) == (600, 40, 2)
    assert counters.num_computed_tokens == counters.step_tokens.total == 66
    assert (counters.num_sampled_tokens, counters.num_failed_sequences) == (4, 2)
    assert counters.num_failed_grammars == 4
    assert counters.step_seconds.total == pytest.approx(800e-6)


def test_a_step_hangs_that_has_run_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = Counters()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "STUCK_AFTER_S", 300.0)
    with counters.working("model", 7, 33):
        now[0] += 300
        assert counters.why_stuck == ""
        now[0] += 1
        assert counters.why_stuck == "a step has run for 301 s"
        with counters.working("waiter", 6, 33):
            assert counters.why_stuck == "a step has run for 301 s"
    assert counters.why_stuck == ""
    with pytest.raises(ValueError, match="failed"), counters.working("model", 7, 33):
        raise ValueError("failed")
    now[0] += 1000
    assert counters.why_stuck == ""
