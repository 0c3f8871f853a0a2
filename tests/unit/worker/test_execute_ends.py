"""The end of an Execute stream whose steps were sent ahead."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

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


async def test_errors_of_steps_that_nobody_waits_for_are_not_reported_as_forgotten() -> None:
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, report: reported.append(report))
    worker = FailingWorker()
    servicer = WorkerServicer(cast("Any", worker), 60.0)
    all_read = asyncio.Event()

    async def requests() -> AsyncIterator[worker_pb2.ExecuteRequest]:
        for number in range(NUM_STEPS):
            outputs = worker_pb2.SchedulerOutputs(epoch=1, step_id=number + 1)
            yield worker_pb2.ExecuteRequest(scheduler_outputs=outputs)
        all_read.set()
        await asyncio.Event().wait()

    try:
        steps = servicer.Execute(requests(), cast("Any", SimpleNamespace()))
        first = asyncio.ensure_future(anext(steps))
        await asyncio.wait_for(all_read.wait(), 20)
        # The scheduler's death cancels the call, and again while it tidies up.
        while not first.done():
            first.cancel()
            await asyncio.sleep(0)
        worker.may_fail.set()
        servicer._executor.submit(int).result()
        await asyncio.sleep(0)
        del first, steps
        gc.collect()
    finally:
        servicer.close()
        loop.set_exception_handler(None)
    assert not reported
