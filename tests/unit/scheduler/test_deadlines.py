"""Deadlines of a cell: what is refused, what is sent before an end, and what predictions learn."""

from dataclasses import dataclass

import pytest

from quire.contract.errors import DeadlineExceededError, UnreachableDeadlineError
from quire.contract.outputs import FinishReason
from quire.contract.sessions import Queued, Refused, SessionEvent, StepOutputs, Submission
from quire.contract.steps import SchedulerOutputs
from scheduler_svc.cell import Cell
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.policy.first_token_times import LEAST_OUTCOMES
from scheduler_svc.sessions.session import RouterSession
from scheduler_svc.workers.executed_step import ExecutedStep
from scheduler_svc.workers.formation import FormedWorkers
from tests.fakes.fake_model import FakeModel
from tests.fakes.fake_worker import FAKE_MODEL
from tests.unit.scheduler.factories import make_params, make_prompt


@dataclass
class Clock:
    """Stands for the module `time` of a cell."""

    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


class Served:
    """A cell, its workers and the session of a router."""

    def __init__(self, clock: Clock, max_num_seqs: int = 1) -> None:
        config = SchedulerConfig(model="m", max_num_seqs=max_num_seqs, block_size=4)
        formed = FormedWorkers(epoch=1, model=FAKE_MODEL, num_blocks=64)
        self.cell = Cell(config, formed, is_draining=False)
        self.model = FakeModel(4, 64, FAKE_MODEL.vocab_size, 0)
        self.session = RouterSession(max_unsent_events=10_000)
        self.clock = clock
        self._number = 0

    def submit(self, max_tokens: int = 3, deadline_ms: int | None = None, **options) -> int:
        self._number += 1
        params = make_params(max_tokens=max_tokens)
        submission = Submission(
            make_prompt(5), params, request_number=self._number, deadline_ms=deadline_ms, **options
        )
        self.cell.submit(self.session, submission)
        return self._number

    def take(self, outputs: SchedulerOutputs, step_s: float) -> None:
        self.clock.now += step_s
        result, num_tokens = self.model.step(outputs), sum(outputs.num_scheduled_tokens)
        num_sequences = len(outputs.sequence_ids)
        self.cell.update(ExecutedStep(result, 0, round(1e6 * step_s), num_tokens, num_sequences, 0))

    def step(self, step_s: float = 0.01) -> None:
        outputs = self.cell.schedule()
        self.cell.send_outputs()
        if outputs is not None:
            self.take(outputs, step_s)

    def run(self, step_s: float = 0.01) -> None:
        while self.cell.num_unfinished:
            self.step(step_s)

    @property
    def events(self) -> list[SessionEvent]:
        return list(self.session._unsent)

    @property
    def refused(self) -> dict[int, type[Exception]]:
        refused = [each for each in self.events if isinstance(each, Refused)]
        return {each.request_number: type(each.error) for each in refused}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("scheduler_svc.cell.time", clock)
    return clock


def test_what_has_come_is_sent_before_a_deadline_ends_the_request(clock: Clock) -> None:
    served = Served(clock)
    number = served.submit(max_tokens=9, deadline_ms=1000)
    for _ in range(3):
        served.step()
    clock.now += 2
    assert served.cell.schedule() is None
    steps = [each for each in served.events if isinstance(each, StepOutputs)]
    assert sum(len(each.token_ids) for each in steps) == 3
    assert isinstance(served.events[-1], Refused)
    assert served.refused == {number: DeadlineExceededError}
    assert served.cell.counters.num_expired == 1


def test_what_ended_in_the_step_before_does_not_expire(clock: Clock) -> None:
    served = Served(clock)
    number = served.submit(max_tokens=1, deadline_ms=1000)
    served.step(step_s=2)
    assert served.cell.schedule() is None
    last = served.events[-1]
    assert isinstance(last, StepOutputs)
    assert last.finished_request_numbers == [number]
    assert last.finish_reasons == [FinishReason.LENGTH]
    assert not served.refused


def test_a_burst_does_not_have_an_idle_cell_refuse_deadlines(clock: Clock) -> None:
    served = Served(clock)
    served.submit(max_tokens=50)
    served.run()
    for _ in range(3 * LEAST_OUTCOMES):
        served.submit(max_tokens=50)
    served.run(step_s=1.0)
    served.submit(max_tokens=1, deadline_ms=1)
    served.run()
    assert not served.refused


def test_behind_a_queue_that_moves_slowly_a_short_deadline_is_refused(clock: Clock) -> None:
    served = Served(clock)
    for _ in range(9):
        served.submit(max_tokens=5)
    for _ in range(12):
        served.step(step_s=1.0)
    late, patient = served.submit(deadline_ms=2000), served.submit(deadline_ms=200_000)
    resumed = served.submit(deadline_ms=2000, outputs={0: (7,)})
    # Before all others, for which it waits no longer than for the one that runs.
    first = served.submit(max_tokens=1, deadline_ms=8000, priority=-1)
    assert served.refused == {late: UnreachableDeadlineError}
    assert {patient, first, resumed} <= {
        each.request_number for each in served.events if isinstance(each, Queued)
    }


@pytest.mark.parametrize("disturbance", ["", "moved", "preempted", "lost", "unmeasured"])
def test_only_requests_that_ran_undisturbed_correct_predictions(
    clock: Clock, disturbance: str
) -> None:
    served = Served(clock)
    served.submit()
    if disturbance != "unmeasured":
        served.run()
    served.cell.deadlines.times._outcomes.clear()
    served.submit(was_queued=disturbance == "moved")
    served.step()
    if disturbance == "preempted":
        served.cell.scheduler.preempt_all(clock.now)
        served.model.sequences.clear()
    elif disturbance == "lost":
        served.cell.lose_workers(has_failed=False)
        served.model.sequences.clear()
        served.cell.take_workers(FormedWorkers(epoch=2, model=FAKE_MODEL, num_blocks=64))
    served.run()
    assert len(served.cell.deadlines.times._outcomes) == (not disturbance)
