"""Schedulers of one name: a start that another one has replaced gets no worker back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from quire.contract.errors import QuireError, StaleEpochError
from quire.rpc.call_errors import sent_error
from quire.v1 import worker_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.rpc.router_double import running_scheduler
from tests.rpc.worker_client import PROMPT, Steps, WorkerStub, init_cache, load, prefill, sequence
from worker_svc.service.counters import Counters
from worker_svc.service.epochs import EpochGuard
from worker_svc.service.heartbeats import Heartbeats


async def mirror(stub: WorkerStub, epoch: int, start: str) -> QuireError | None:
    """Return the error that a start's demand for the worker under an epoch ends with."""
    try:
        await stub.Mirror(worker_pb2.MirrorRequest(epoch=epoch, scheduler_start=start))
    except grpc.aio.AioRpcError as error:
        return sent_error(error)
    return None


async def beat(stub: WorkerStub, epoch: int, start: str) -> QuireError | None:
    """Return the error that heartbeats of a start end with; None if another one comes."""
    call = stub.Heartbeat()
    try:
        await call.write(worker_pb2.HeartbeatRequest(epoch=epoch, scheduler_start=start))
        for _ in range(3):
            assert await call.read() is not grpc.aio.EOF
    except grpc.aio.AioRpcError as error:
        return sent_error(error)
    finally:
        call.cancel()
    return None


async def open_steps(stub: WorkerStub, model: Path, epoch: int) -> Steps:
    """Return a stream that the worker knows of, and that has sent no step."""
    await load(stub, model, scheduler_name="here:1")
    steps = Steps(stub, epoch)
    while not (await stub.Describe(worker_pb2.DescribeRequest())).scheduler_name:
        pass
    return steps


# ---------------------------------------------------------------- the worker


@pytest.mark.parametrize("starts", ["ab", "aa"])
async def test_a_stream_without_a_step_ends_when_a_higher_epoch_comes(
    worker: WorkerStub, llama: Path, starts: str
) -> None:
    async with asyncio.timeout(30):
        assert await mirror(worker, 1, starts[0]) is None
        steps = await open_steps(worker, llama, 1)
        assert await mirror(worker, 2, starts[1]) is None
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await steps.receive()
    assert isinstance(sent_error(ended.value), StaleEpochError)


async def test_a_stream_without_a_step_of_an_earlier_release_goes_on(
    worker: WorkerStub, llama: Path
) -> None:
    """It would form its workers again, and take them back from the scheduler that replaced it."""
    async with asyncio.timeout(30):
        steps = await open_steps(worker, llama, 2)
        assert await mirror(worker, 2, "") is None
        await init_cache(worker, 2)
        assert (await steps.run(**prefill(sequence(1, PROMPT, [3, 2])))).token_ids


async def test_two_starts_do_not_share_an_epoch(worker: WorkerStub) -> None:
    async with asyncio.timeout(30):
        assert await mirror(worker, 1, "a") is None
        for ask in (mirror, beat):
            assert isinstance(await ask(worker, 1, "b"), StaleEpochError)
            assert await ask(worker, 1, "a") is None


async def test_a_start_that_was_replaced_gets_nothing_with_a_higher_epoch(
    worker: WorkerStub,
) -> None:
    async with asyncio.timeout(30):
        for epoch, start in enumerate("aabbc", 1):
            assert await mirror(worker, epoch, start) is None
        for ask in (mirror, beat):
            for epoch in (4, 5, 6):
                for start in "ab":
                    assert isinstance(await ask(worker, epoch, start), StaleEpochError)
            assert await ask(worker, 5, "c") is None
        assert (await worker.Describe(worker_pb2.DescribeRequest())).epoch == 5


async def test_a_scheduler_that_fell_silent_and_was_replaced_leaves_the_other_its_worker() -> None:
    """Its silence is that of the driver no more."""
    epochs = EpochGuard()
    epochs.admit(1, "a")
    heartbeats = Heartbeats(Counters(), epochs, lambda: False, peer_timeout_s=0.2)
    has_beaten = asyncio.Event()

    async def once() -> AsyncIterator[worker_pb2.HeartbeatRequest]:
        yield worker_pb2.HeartbeatRequest(epoch=1, scheduler_start="a")
        has_beaten.set()
        await asyncio.Event().wait()

    async def take_all() -> None:
        async for _ in heartbeats.exchange(once()):
            pass

    taking = asyncio.create_task(take_all())
    async with asyncio.timeout(30):
        await has_beaten.wait()
        epochs.admit(2, "b")
        with pytest.raises(StaleEpochError):
            await taking
    assert not epochs.is_driver_silent


# ---------------------------------------------------------------- the scheduler


class ReplacingWorker(FakeWorker):
    """Lets schedulers go when the test says so, as a worker that another start has.

    Args:
        call: which of their calls it ends: "Heartbeat", "Execute" or "Describe".
    """

    def __init__(self, call: str) -> None:
        super().__init__()
        self.is_replaced = asyncio.Event()
        self._call = call

    async def _until_replaced(self, call: str) -> None:
        await self.is_replaced.wait()
        if call == self._call:
            raise StaleEpochError("another start of this scheduler has replaced it")

    async def Heartbeat(self, requests, context):  # type: ignore[no-untyped-def]
        async for response in super().Heartbeat(requests, context):
            yield response
            if self.is_replaced.is_set():
                await self._until_replaced("Heartbeat")

    async def Execute(self, requests, context):  # type: ignore[no-untyped-def]
        await self._until_replaced("Execute")
        if self._call == "Describe":
            # The connection was cut meanwhile: nobody says why.
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
        await asyncio.Event().wait()
        yield

    async def Describe(self, request: Any, context: Any) -> worker_pb2.DescribeResponse:
        if self._call == "Describe" and self.is_replaced.is_set():
            self.epoch += 1
        return await super().Describe(request, context)


@pytest.mark.parametrize("call", ["Heartbeat", "Execute", "Describe"])
async def test_an_idle_scheduler_that_was_replaced_ends(call: str) -> None:
    async with (
        asyncio.timeout(30),
        ReplacingWorker(call) as worker,
        running_scheduler(worker.address) as (scheduler, _),
    ):
        assert len(worker.load_requests) == 1
        worker.is_replaced.set()
        with pytest.raises(StaleEpochError):
            await scheduler.run()
        assert len(worker.load_requests) == 1, "it does not form its workers again"
