"""WorkerService: proto in, domain call on the worker's own thread, proto out."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar, TypeVarTuple

import grpc

from quire.contract.errors import QuireError, StaleEpochError
from quire.contract.steps import SchedulerOutputs, StepGap, StepResult
from quire.contract.workers import LoadResponse
from quire.v1 import worker_pb2, worker_pb2_grpc
from quire.wire.worker import (
    cache_profile_to_proto,
    cache_spec_from_proto,
    description_to_proto,
    execute_request_from_proto,
    execute_response_to_proto,
    host_cache_to_proto,
    load_request_from_proto,
    load_response_to_proto,
    mirror_to_proto,
    profile_spec_from_proto,
)
from worker_svc.service.counters import WorkerAccount
from worker_svc.service.epochs import EpochGuard, StepStream
from worker_svc.service.traces import log_new_sequences, record_step
from worker_svc.steps.pending import PendingStep
from worker_svc.worker import Worker

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_Result = asyncio.Future["_StartedStep | StepGap"]
# What an Execute call waits for: a step under way, the end of the requests, or what ended them.
_Event = _Result | None | Exception


@dataclass(frozen=True, slots=True)
class _StartedStep:
    """A step under way.

    Attributes:
        orders: of the scheduler.
        pending: the step.
        thread_us: time the model's thread spent on it.
        num_tokens: that it computes.
    """

    orders: SchedulerOutputs
    pending: PendingStep
    thread_us: int
    num_tokens: int

    def result(self) -> StepResult:
        """Wait for it."""
        result, orders = self.pending.result(), self.orders
        # Beside a GPU the thread has long gone on, or has waited for the step before.
        device_us = result.model_us + result.sample_us
        worker_us = self.thread_us if self.pending.is_done else device_us
        result = replace(result, epoch=orders.epoch, step_id=orders.step_id, worker_us=worker_us)
        record_step(orders.traceparent, self.num_tokens, result)
        return result


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Serves one worker.

    Everything that touches the model runs, in order of arrival, in one thread that does nothing
    else; the event loop stays free to answer health checks while a model loads.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.epochs = EpochGuard()
        self.account = WorkerAccount()
        self._executor = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="model", initializer=worker.start_thread
        )
        # Waits for what a GPU computes, while the model's thread starts the next step.
        self._waiter = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="step-waiter",
            initializer=worker.start_waiting_thread,
        )

    def close(self) -> None:
        """Let the step under way finish and stop the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._waiter.shutdown(wait=True, cancel_futures=True)

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.DescribeResponse:
        """What this worker is and holds."""
        description = replace(
            self._worker.describe(),
            epoch=self.epochs.highest,
            scheduler_name=self.epochs.driver_name,
        )
        return description_to_proto(description)

    async def OpenRendezvous(  # noqa: N802
        self, request: worker_pb2.OpenRendezvousRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.OpenRendezvousResponse:
        """Await the other ranks."""
        self.epochs.admit(request.epoch)
        address = await self._run(self._worker.open_rendezvous, request.host)
        return worker_pb2.OpenRendezvousResponse(distributed_init_address=address)

    async def LoadModel(  # noqa: N802
        self, request: worker_pb2.LoadModelRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.LoadModelResponse:
        """Load this rank's slice of a model."""
        self.epochs.admit(request.epoch)
        self.epochs.scheduler_name = request.scheduler_name
        load = load_request_from_proto(request)
        loaded = await self._run(
            self._worker.load_model, load.spec, load.served_model_name, load.meeting
        )
        return load_response_to_proto(LoadResponse(loaded.info, loaded.checkpoint_digest))

    async def ProfileCache(  # noqa: N802
        self, request: worker_pb2.ProfileCacheRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.ProfileCacheResponse:
        """Say how much cache fits."""
        self.epochs.admit(request.epoch)
        spec = profile_spec_from_proto(request)
        return cache_profile_to_proto(await self._run(self._worker.profile_cache, spec))

    async def InitCache(  # noqa: N802
        self, request: worker_pb2.InitCacheRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.InitCacheResponse:
        """Allocate the cache."""
        self.epochs.admit(request.epoch)
        host_cache = await self._run(self._worker.init_cache, cache_spec_from_proto(request))
        return host_cache_to_proto(host_cache)

    async def Mirror(  # noqa: N802
        self, request: worker_pb2.MirrorRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.MirrorResponse:
        """Say which sequences are held."""
        self.epochs.admit(request.epoch)
        return mirror_to_proto(await self._run(self._worker.mirror))

    async def Reset(  # noqa: N802
        self, request: worker_pb2.ResetRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.ResetResponse:
        """Forget every sequence."""
        self.epochs.admit(request.epoch)
        await self._run(self._worker.reset)
        return worker_pb2.ResetResponse()

    async def Execute(  # noqa: N802
        self,
        request_iterator: AsyncIterator[worker_pb2.ExecuteRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        """Run steps in order; each is handed to the model's thread as soon as it is read.

        So a step sent ahead starts right when the one before it ends, with no turn of the event
        loop between them.
        """
        requests = aiter(request_iterator)
        # Before the first step: an idle scheduler drives this worker too.
        with self.epochs.open_call():
            first = await anext(requests, None)
            if first is None:
                return
            events: asyncio.Queue[_Event] = asyncio.Queue()
            epoch = first.scheduler_outputs.epoch
            stream = self.epochs.open_stream(
                epoch,
                on_end=lambda: events.put_nowait(
                    StaleEpochError(f"this stream of epoch {epoch} was replaced by a newer one")
                ),
            )
            reader = asyncio.create_task(self._read_steps(first, requests, stream, events))
            try:
                while (event := await events.get()) is not None:
                    if isinstance(event, Exception):
                        raise event
                    response = await self._finish(await event)
                    yield execute_response_to_proto(response)
                    if isinstance(response, StepGap):
                        return
            finally:
                self.epochs.close_stream(stream)
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
                while not events.empty():
                    if isinstance(pending := events.get_nowait(), asyncio.Future):
                        pending.cancel()

    async def _read_steps(
        self,
        first: worker_pb2.ExecuteRequest,
        requests: AsyncIterator[worker_pb2.ExecuteRequest],
        stream: StepStream,
        events: asyncio.Queue[_Event],
    ) -> None:
        """Hand each request to the model's thread and queue its future for the caller."""
        request: worker_pb2.ExecuteRequest | None = first
        try:
            while request is not None:
                outputs = execute_request_from_proto(request)
                if outputs.epoch != stream.epoch:
                    raise StaleEpochError(
                        f"a stream keeps its epoch: {stream.epoch}, got {outputs.epoch}"
                    )
                events.put_nowait(self._run(self._run_step, stream, outputs))
                log_new_sequences(outputs)
                request = await anext(requests, None)
            events.put_nowait(None)
        except Exception as error:
            events.put_nowait(error)

    async def _finish(self, step: "_StartedStep | StepGap") -> StepResult | StepGap:
        """Wait for a step without keeping the model's thread from the next."""
        if isinstance(step, StepGap):
            return step
        if step.pending.is_done:
            result = step.result()
        else:
            result = await self._run_in(self._waiter, self._wait_for, step)
        self.account.count(result, step.num_tokens)
        return result

    def _wait_for(self, step: _StartedStep) -> StepResult:
        """Wait for a step in a thread of its own."""
        with self.account.working("waiter"):
            return step.result()

    def _run_step(self, stream: StepStream, outputs: SchedulerOutputs) -> "_StartedStep | StepGap":
        """Start a step in the model's thread."""
        started_ns = time.perf_counter_ns()
        is_first = stream.is_first(outputs.step_id)
        gap = stream.advance(outputs.step_id)
        if gap is not None:
            return gap
        if is_first:
            # A new stream brings every sequence in full.
            self._worker.reset()
        try:
            with self.account.working("model"):
                pending = self._worker.execute(outputs)
        except Exception:
            # Steps that were sent ahead of this one's failure must not run.
            stream.is_ended = True
            raise
        thread_us = (time.perf_counter_ns() - started_ns) // 1000
        return _StartedStep(outputs, pending, thread_us, sum(outputs.num_scheduled_tokens))

    def _run(self, function: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Queue a call for the model's thread."""
        return self._run_in(self._executor, function, *args)

    def _run_in(
        self, executor: ThreadPoolExecutor, function: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Queue a call for a thread that uses the device."""

        def call() -> T:
            try:
                return function(*args)
            except QuireError:
                raise
            except Exception:
                self._worker.exit_if_device_is_lost()
                raise

        return asyncio.get_running_loop().run_in_executor(executor, call)
