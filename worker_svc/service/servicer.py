"""WorkerService: a message in, a call in the model's thread, a message out."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TypeVar, TypeVarTuple

import grpc

from quire.contract.errors import QuireError, StaleEpochError
from quire.contract.steps import SchedulerOutputs, StepGap, StepResult
from quire.contract.workers import LoadResponse, LoadSpec
from quire.rpc import TlsFiles
from quire.v1 import worker_pb2, worker_pb2_grpc
from quire.wire.block_shipping import (
    block_order_from_proto,
    block_piece_to_proto,
    import_order_from_proto,
    import_result_to_proto,
)
from quire.wire.caches import (
    cache_profile_to_proto,
    cache_spec_from_proto,
    host_cache_to_proto,
    profile_from_proto,
)
from quire.wire.mirror import mirror_to_proto
from quire.wire.worker import (
    description_to_proto,
    execute_request_from_proto,
    execute_response_to_proto,
    load_request_from_proto,
    load_response_to_proto,
)
from worker_svc.service.block_transfers import BlockTransfers
from worker_svc.service.counters import Counters
from worker_svc.service.epochs import EpochGuard, ExecuteStream
from worker_svc.service.heartbeats import Heartbeats
from worker_svc.service.step_times import StepTimes
from worker_svc.service.traces import log_new_sequences, record_step
from worker_svc.steps.pending import PendingStep
from worker_svc.worker import Worker

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_Result = asyncio.Future["_StartedStep | StepGap"]
# An Execute call waits for one of these: a step under way, the end of the requests, an error.
_Event = _Result | None | Exception


@dataclass(frozen=True, slots=True)
class _StartedStep:
    """A step under way.

    Attributes:
        orders: orders of the scheduler.
        pending: the step.
        thread_us: microseconds that the model's thread spent on it.
        num_tokens: tokens that it computes.
    """

    orders: SchedulerOutputs
    pending: PendingStep
    thread_us: int
    num_tokens: int

    def result(self) -> StepResult:
        """Wait for the step, record its spans and return its result."""
        result, orders = self.pending.result(), self.orders
        # On a GPU the thread's time is not the step's: it does not wait for the step to end.
        device_us = result.model_us + result.sample_us
        worker_us = self.thread_us if self.pending.is_done else device_us
        result = replace(result, epoch=orders.epoch, step_id=orders.step_id, worker_us=worker_us)
        record_step(orders.traceparent, self.num_tokens, result)
        return result


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Serves one worker.

    Everything that touches the model runs in one thread of its own, in order of arrival; the event
    loop stays free to answer health checks while a model loads.

    Args:
        worker: the worker.
        peer_timeout_s: how long a scheduler may be silent before the worker is free.
        tls: certificate of this worker; None speaks in the clear to other workers.

    Attributes:
        epochs: epochs and streams that it accepts.
        counters: counters of its steps.
        transfers: blocks on their way between workers.
    """

    def __init__(self, worker: Worker, peer_timeout_s: float, tls: TlsFiles | None = None) -> None:
        self._worker = worker
        self.epochs = EpochGuard()
        self.counters = Counters()
        self._spec: LoadSpec | None = None
        self._heartbeats = Heartbeats(
            self.counters, self.epochs, lambda: worker.waits_for_ranks, peer_timeout_s
        )
        self._executor = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="model", initializer=worker.start_thread
        )
        # Waits for what a GPU computes, while the model's thread starts the next step.
        self._waiter = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="step-waiter",
            initializer=worker.start_waiting_thread,
        )
        self.transfers = BlockTransfers(worker, self._run, self.epochs, tls)

    def close(self) -> None:
        """Let the step under way finish and stop the threads."""
        self.transfers.close()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._waiter.shutdown(wait=True, cancel_futures=True)

    async def Describe(
        self, request: worker_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.DescribeResponse:
        """Describe the worker and what it holds."""
        description = replace(
            self._worker.describe(),
            epoch=self.epochs.highest,
            scheduler_name=self.epochs.driver_name,
        )
        return description_to_proto(description)

    async def OpenRendezvous(
        self, request: worker_pb2.OpenRendezvousRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.OpenRendezvousResponse:
        """Open the address where the other ranks meet this one."""
        self._admit(request.epoch)
        address = await self._run(self._worker.open_rendezvous, request.host)
        return worker_pb2.OpenRendezvousResponse(distributed_init_address=address)

    async def LoadModel(
        self, request: worker_pb2.LoadModelRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.LoadModelResponse:
        """Load this rank's slice of a model."""
        self._admit(request.epoch)
        self.epochs.scheduler_name = request.scheduler_name
        load = load_request_from_proto(request)
        if load.spec != self._spec:
            # Another model takes other times.
            self._spec, self.counters.step_times = load.spec, StepTimes()
        loaded = await self._run(
            self._worker.load_model, load.spec, load.served_model_name, load.meeting
        )
        return load_response_to_proto(LoadResponse(loaded.info, loaded.checkpoint_digest))

    async def ProfileCache(
        self, request: worker_pb2.ProfileCacheRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.ProfileCacheResponse:
        """Return how much cache fits."""
        self._admit(request.epoch)
        options, num_at_host = profile_from_proto(request), request.num_at_host or 1
        return cache_profile_to_proto(
            await self._run(self._worker.profile_cache, options, num_at_host)
        )

    async def InitCache(
        self, request: worker_pb2.InitCacheRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.InitCacheResponse:
        """Allocate the cache."""
        self._admit(request.epoch)
        host_cache = await self._run(self._worker.init_cache, cache_spec_from_proto(request))
        return host_cache_to_proto(host_cache)

    async def Mirror(
        self, request: worker_pb2.MirrorRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.MirrorResponse:
        """Return what the worker holds; a new scheduler ends what an old one has ordered."""
        is_new = request.epoch > self.epochs.highest
        self._admit(request.epoch, request.scheduler_start)
        if is_new:
            await self._run(self._worker.leave_group)
        return mirror_to_proto(await self._run(self._worker.mirror))

    async def Reset(
        self, request: worker_pb2.ResetRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.ResetResponse:
        """Forget every sequence."""
        self._admit(request.epoch)
        await self._run(self._worker.reset)
        return worker_pb2.ResetResponse()

    async def ImportBlocks(
        self, request: worker_pb2.ImportBlocksRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.ImportBlocksResponse:
        """Fill blocks with what another worker holds."""
        self._admit(request.epoch)
        order = import_order_from_proto(request)
        return import_result_to_proto(await self.transfers.fetch(request.epoch, order))

    async def FetchBlocks(
        self, request: worker_pb2.FetchBlocksRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[worker_pb2.FetchBlocksResponse]:
        """Send another worker what blocks hold."""
        async with aclosing(self.transfers.send(block_order_from_proto(request))) as pieces:
            async for piece in pieces:
                yield block_piece_to_proto(piece)

    async def Heartbeat(
        self,
        request_iterator: AsyncIterator[worker_pb2.HeartbeatRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[worker_pb2.HeartbeatResponse]:
        """Exchange heartbeats with a scheduler."""
        async with aclosing(self._heartbeats.exchange(request_iterator)) as beats:
            async for beat in beats:
                yield beat

    async def Execute(
        self,
        request_iterator: AsyncIterator[worker_pb2.ExecuteRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        """Run steps in order; each is handed to the model's thread as soon as it is read.

        So a step sent ahead starts when the one before it ends, without a turn of the event loop
        between them.
        """
        events: asyncio.Queue[_Event] = asyncio.Queue()

        def replaced() -> None:
            events.put_nowait(
                StaleEpochError(f"the stream of epoch {stream.epoch} was replaced by a newer one")
            )

        # Counted before the first step: an idle scheduler drives this worker too.
        with self.epochs.open_stream(replaced) as stream:
            reader = asyncio.create_task(self._read_steps(request_iterator, stream, events))
            try:
                while (event := await events.get()) is not None:
                    if isinstance(event, Exception):
                        raise event
                    response = await self._finish(await event)
                    yield execute_response_to_proto(response)
                    if isinstance(response, StepGap):
                        return
            finally:
                stream.is_ended = True
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
                while not events.empty():
                    if isinstance(pending := events.get_nowait(), asyncio.Future):
                        pending.cancel()

    async def _read_steps(
        self,
        requests: AsyncIterator[worker_pb2.ExecuteRequest],
        stream: ExecuteStream,
        events: asyncio.Queue[_Event],
    ) -> None:
        """Hand each request to the model's thread and queue its future for the caller."""
        try:
            async for request in requests:
                outputs = execute_request_from_proto(request)
                if not stream.epoch:
                    self.epochs.begin(stream, outputs.epoch)
                elif outputs.epoch != stream.epoch:
                    raise StaleEpochError(
                        f"epoch: must be {stream.epoch} in this stream, got {outputs.epoch}"
                    )
                step = self._run(self._run_step, stream, outputs)
                # A call that is cancelled waits for none of the steps sent ahead.
                step.add_done_callback(_take_error)
                events.put_nowait(step)
                log_new_sequences(outputs)
            events.put_nowait(None)
        except Exception as error:
            events.put_nowait(error)

    async def _finish(self, step: "_StartedStep | StepGap") -> StepResult | StepGap:
        """Wait for a step; the model's thread may start the next one meanwhile."""
        if isinstance(step, StepGap):
            return step
        elapsed_s = 1e-6 * step.thread_us
        if step.pending.is_done:
            result = step.result()
        else:
            result, waited_s = await self._run_in(self._waiter, self._wait_for, step)
            elapsed_s = max(elapsed_s, waited_s)
        num_failed = step.pending.num_failed(result)
        self.counters.count(result, step.num_tokens, num_failed, elapsed_s)
        return result

    def _wait_for(self, step: _StartedStep) -> tuple[StepResult, float]:
        """Wait for a step in a thread of its own; return its result and the seconds it took."""
        began_s = time.monotonic()
        with self.counters.working("waiter", step.orders.step_id, step.num_tokens):
            result = step.result()
        return result, time.monotonic() - began_s

    def _run_step(
        self, stream: ExecuteStream, outputs: SchedulerOutputs
    ) -> "_StartedStep | StepGap":
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
            num_tokens = sum(outputs.num_scheduled_tokens)
            with self.counters.working("model", outputs.step_id, num_tokens):
                pending = self._worker.execute(outputs)
        except Exception:
            # Steps sent before the scheduler knows of this failure must not run.
            stream.is_ended = True
            raise
        thread_us = (time.perf_counter_ns() - started_ns) // 1000
        return _StartedStep(outputs, pending, thread_us, pending.batch.num_tokens)

    def _admit(self, epoch: int, start: str = "") -> None:
        """Obey an epoch; a newer one than before frees the model's thread of lost ranks."""
        highest = self.epochs.highest
        self.epochs.admit(epoch, start)
        if epoch > highest:
            self._worker.abandon_exchange()

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


def _take_error(step: _Result) -> None:
    """Take a step's error, which asyncio would report if nobody else did."""
    if not step.cancelled():
        step.exception()
