"""Which errors are a worker's own failure: those that it sent, and none that grpc made of them."""

import asyncio

import grpc
import pytest

from quire.contract.errors import UnavailableError
from quire.contract.steps import SchedulerOutputs
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.workers.client import WorkerFailedError
from scheduler_svc.workers.worker_set import WorkerSet
from tests.fakes.fake_worker import FakeWorker

# As grpc ends calls by itself: all but OK.
CODES = sorted(set(grpc.StatusCode) - {grpc.StatusCode.OK}, key=lambda code: code.name)


class FailingWorker(FakeWorker):
    """Ends LoadModel, and each stream at its first step, as grpc does or as a service of ours.

    Args:
        code: that grpc ends them with; None: the worker has a bug.
        is_loaded: whether LoadModel succeeds.
    """

    def __init__(self, code: grpc.StatusCode | None, is_loaded: bool) -> None:
        super().__init__()
        self._code, self._is_loaded = code, is_loaded

    async def _fail(self, context: grpc.aio.ServicerContext) -> None:
        if self._code is None:
            raise ZeroDivisionError
        await context.abort(self._code, "Internal error from Core")

    async def LoadModel(self, request, context):  # type: ignore[no-untyped-def]
        if not self._is_loaded:
            await self._fail(context)
        return await super().LoadModel(request, context)

    async def Execute(self, requests, context):  # type: ignore[no-untyped-def]
        async for _ in requests:
            await self._fail(context)
            yield


async def failure(code: grpc.StatusCode | None, is_loaded: bool) -> UnavailableError:
    """Return what a scheduler makes of a worker's end, of a call or of a stream."""
    async with asyncio.timeout(20), FailingWorker(code, is_loaded) as worker:
        config = SchedulerConfig(model="/m", served_model_name="m", workers=(worker.address,))
        workers = WorkerSet(config, lambda: None)
        try:
            with pytest.raises(UnavailableError, match=worker.address) as caught:
                await workers.form("test")
                await workers.send(SchedulerOutputs())
                await workers.receive()
        finally:
            await workers.close()
    return caught.value


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
async def test_what_grpc_ends_a_call_with_is_no_failure_of_the_worker(
    code: grpc.StatusCode, is_loaded: bool
) -> None:
    assert not isinstance(await failure(code, is_loaded), WorkerFailedError)


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_an_unforeseen_error_that_the_worker_sent_is_its_failure(is_loaded: bool) -> None:
    assert isinstance(await failure(None, is_loaded), WorkerFailedError)
