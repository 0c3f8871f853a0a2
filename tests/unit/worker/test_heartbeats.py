"""What a worker reports of a step that hangs, to schedulers that have not sent it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire.contract.steps import SchedulerOutputs, StepResult
from quire.contract.workers import LONGEST_STEP_S
from quire.v1 import worker_pb2
from tests.fakes.fake_worker import FAKE_MODEL
from worker_svc.service import heartbeats
from worker_svc.service.servicer import WorkerServicer
from worker_svc.service.step_times import NUM_FIRST_STEPS, SHORTEST_LIMIT_S

CONTEXT = cast("Any", SimpleNamespace())
NUM_TOKENS = 3


class HangingWorker:
    """A worker whose steps take no time, but for one that ends when the test says so."""

    def __init__(self, hangs_at: int) -> None:
        self._hangs_at = hangs_at
        self.hangs, self.may_go_on = threading.Event(), threading.Event()
        self.waits_for_ranks = False

    def start_thread(self) -> None:
        pass

    start_waiting_thread = reset = exit_if_device_is_lost = abandon_exchange = start_thread

    def execute(self, outputs: SchedulerOutputs) -> Any:
        if outputs.step_id == self._hangs_at:
            self.hangs.set()
            assert self.may_go_on.wait(20)
        return SimpleNamespace(
            is_done=True,
            batch=SimpleNamespace(num_tokens=NUM_TOKENS),
            result=lambda: StepResult((), ()),
            num_failed=lambda result: (0, 0),
        )


async def steps(number: int) -> AsyncIterator[worker_pb2.ExecuteRequest]:
    for step_id in range(1, number + 1):
        outputs = worker_pb2.SchedulerOutputs(
            epoch=1, step_id=step_id, sequence_ids=[1], num_scheduled_tokens=[NUM_TOKENS]
        )
        yield worker_pb2.ExecuteRequest(scheduler_outputs=outputs)


async def beats(*sent: worker_pb2.HeartbeatRequest) -> AsyncIterator[worker_pb2.HeartbeatRequest]:
    for request in sent:
        yield request
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("num_before", "limit_s"),
    [(NUM_FIRST_STEPS - 1, LONGEST_STEP_S), (NUM_FIRST_STEPS, SHORTEST_LIMIT_S)],
)
async def test_each_scheduler_gets_the_limit_of_the_step_that_hangs(
    num_before: int, limit_s: float
) -> None:
    worker = HangingWorker(num_before + 1)
    servicer = WorkerServicer(cast("Any", worker), 60.0)
    try:
        async with aclosing(servicer.Execute(steps(num_before + 1), CONTEXT)) as results:  # type: ignore[type-var]
            for _ in range(num_before):
                await anext(results)
            assert await asyncio.to_thread(worker.hangs.wait, 20)
            # The one that sent it, and the next, which knows nothing of it.
            for _ in range(2):
                async with aclosing(servicer.Heartbeat(beats(), CONTEXT)) as responses:  # type: ignore[type-var]
                    beat = await anext(responses)
                assert (beat.step_id, beat.limit_ms) == (num_before + 1, 1000 * limit_s)
            worker.may_go_on.set()
            await anext(results)
    finally:
        worker.may_go_on.set()
        servicer.close()


async def test_the_next_scheduler_ends_a_worker_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exits: list[int] = []
    monkeypatch.setattr(heartbeats.os, "_exit", exits.append)
    worker = HangingWorker(1)
    servicer = WorkerServicer(cast("Any", worker), 60.0)
    running = asyncio.ensure_future(anext(servicer.Execute(steps(1), CONTEXT)))
    try:
        while not worker.hangs.is_set():
            await asyncio.sleep(0)
        servicer.epochs.admit(2)
        for epoch in (1, 2):
            hung = worker_pb2.HeartbeatRequest(epoch=epoch, hung_step_id=1)
            async with aclosing(servicer.Heartbeat(beats(hung), CONTEXT)) as responses:  # type: ignore[type-var]
                await anext(responses)
                await anext(responses)
            assert len(exits) == epoch - 1, "a scheduler that was replaced ends nothing"
    finally:
        worker.may_go_on.set()
        await asyncio.wait((running,))
        servicer.close()


async def test_another_model_takes_other_times() -> None:
    worker = HangingWorker(0)
    loaded = SimpleNamespace(info=FAKE_MODEL, checkpoint_digest=b"")
    worker.load_model = lambda *_: loaded  # type: ignore[attr-defined]
    servicer = WorkerServicer(cast("Any", worker), 60.0)

    async def load(model: str) -> None:
        request = worker_pb2.LoadModelRequest(epoch=1, model=model, tensor_parallel_size=1)
        await servicer.LoadModel(request, CONTEXT)

    try:
        await load("one")
        for _ in range(NUM_FIRST_STEPS):
            servicer.counters.step_times.observe(NUM_TOKENS, 0.01)
        await load("one")
        assert servicer.counters.step_times.limit_s(NUM_TOKENS) == SHORTEST_LIMIT_S
        await load("another")
        assert servicer.counters.step_times.limit_s(NUM_TOKENS) == LONGEST_STEP_S
    finally:
        servicer.close()
