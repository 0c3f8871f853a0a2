"""The end of an Execute stream whose steps were sent ahead."""

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire.v1 import worker_pb2
from worker_svc.service.servicer import WorkerServicer

NUM_STEPS = 4


class FailingWorker:
    """A worker whose first step fails when the test says so."""

    def __init__(self) -> None:
        self.may_fail = threading.Event()

    def start_thread(self) -> None:
        pass

    def start_waiting_thread(self) -> None:
        pass

    def reset(self) -> None:
        pass

    def execute(self, outputs: object) -> None:
        assert self.may_fail.wait(20)
        raise RuntimeError("the first step fails")

    def exit_if_device_is_lost(self) -> None:
        pass


async def test_errors_of_steps_that_nobody_waits_for_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = FailingWorker()
    servicer = WorkerServicer(cast("Any", worker), 60.0)
    started: list[asyncio.Future[object]] = []
    run = servicer._run

    def recorded(*arguments: Any) -> asyncio.Future[object]:
        started.append(run(*arguments))
        return started[-1]

    monkeypatch.setattr(servicer, "_run", recorded)

    async def requests() -> AsyncIterator[worker_pb2.ExecuteRequest]:
        for number in range(NUM_STEPS):
            outputs = worker_pb2.SchedulerOutputs(epoch=1, step_id=number + 1)
            yield worker_pb2.ExecuteRequest(scheduler_outputs=outputs)
        await asyncio.Event().wait()

    try:
        call = servicer.Execute(requests(), cast("Any", SimpleNamespace()))
        first = asyncio.ensure_future(anext(call))
        while len(started) < NUM_STEPS:
            await asyncio.sleep(0)
        # The scheduler's death cancels the call, and again while it tidies up.
        while not first.done():
            first.cancel()
            await asyncio.sleep(0)
        worker.may_fail.set()
        await asyncio.wait(started)
        await asyncio.sleep(0)  # callbacks of the last one
    finally:
        servicer.close()
    assert any(not step.cancelled() for step in started)
    # What asyncio would report when such a future is gone.
    assert not any(step._log_traceback for step in started if not step.cancelled())
