"""A worker's account: what a step adds, and a step that hangs."""

import pytest

from quire.contract.steps import StepResult
from worker_svc.service import counters as module
from worker_svc.service.counters import WorkerAccount


def test_a_step_adds_what_it_took_and_brought() -> None:
    account = WorkerAccount()
    result = StepResult((4, 5), (7, 8), (6,), model_us=300, sample_us=20, worker_us=400, swap_us=1)
    for _ in range(2):
        account.count(result, num_tokens=33)
    assert (account.model_us, account.sample_us, account.swap_us) == (600, 40, 2)
    assert account.num_computed_tokens == account.step_tokens.total == 66
    assert (account.num_sampled_tokens, account.num_failed_sequences) == (4, 2)
    assert account.step_seconds.total == pytest.approx(800e-6)


def test_a_step_hangs_that_has_run_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    account = WorkerAccount()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "STUCK_AFTER_S", 300.0)
    with account.working("model"):
        now[0] += 300
        assert account.why_stuck == ""
        now[0] += 1
        assert account.why_stuck == "a step has run for 301 s"
        with account.working("waiter"):
            assert account.why_stuck == "a step has run for 301 s"
    assert account.why_stuck == ""
    with pytest.raises(ValueError, match="failed"), account.working("model"):
        raise ValueError("failed")
    now[0] += 1000
    assert account.why_stuck == ""
