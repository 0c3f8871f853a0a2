"""quire.v1.SchedulerService: sessions with routers, announcements of workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from quire.contract.errors import InvalidRequestError, UnavailableError
from quire.contract.sessions import Cancellation, Heartbeat, Refused, Submission, Welcome
from quire.observe.log import get_logger
from quire.rpc.heartbeat import INTERVAL_S, PeerWatch
from quire.v1 import scheduler_pb2, scheduler_pb2_grpc
from quire.wire.resizing import resize_progress_to_proto
from quire.wire.scheduler import (
    announcement_from_proto,
    session_event_to_proto,
    session_request_from_proto,
)
from scheduler_svc.cell import Cell
from scheduler_svc.driver import Driver
from scheduler_svc.sessions.session import RouterSession

DRAIN_REPORT_S = 0.5
RESIZE_TIMEOUT_S = 300.0

log = get_logger()


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Carries messages between streams and the cell."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    # Not a generator as the stub declares: one that is stuck in a write could not be ended.
    async def Session(  # type: ignore[override]
        self,
        request_iterator: AsyncIterator[scheduler_pb2.SessionRequest],
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Greet a router, then serve it until it leaves, stops reading, or the cell stops."""
        session = self._driver.open_session()
        log.info("session_opened", peer=context.peer())
        watch = PeerWatch(self._driver.peer_timeout_s)
        reader = asyncio.create_task(self._read(session, request_iterator, watch))
        writer = asyncio.create_task(self._write(session, context))
        guard = asyncio.create_task(_end_if_silent(session, watch))
        for task in (reader, writer):
            task.add_done_callback(lambda _: session.end())
        try:
            await session.ended.wait()
            # At once: a router that does not read must not keep blocks.
            self._driver.close_session(session)
            # gRPC cannot send a status while a write is pending: wait for it.
            await writer
            if reader.done():
                reader.result()
            if session.error is not None:
                raise session.error
        finally:
            self._driver.close_session(session)
            for task in (reader, writer, guard):
                task.cancel()
            await asyncio.gather(reader, writer, guard, return_exceptions=True)
            log.info("session_closed", peer=context.peer())

    async def AnnounceWorker(
        self,
        request: scheduler_pb2.AnnounceWorkerRequest,
        context: grpc.aio.ServicerContext,
    ) -> scheduler_pb2.AnnounceWorkerResponse:
        """Record the address of a worker."""
        await self._driver.workers.roster.announce(announcement_from_proto(request))
        return scheduler_pb2.AnnounceWorkerResponse()

    async def Drain(
        self, request: scheduler_pb2.DrainRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[scheduler_pb2.DrainResponse]:
        """Drain the cell and report how far that is; the process ends afterwards."""
        draining = asyncio.create_task(self._driver.drain(request.move, request.timeout_s))
        try:
            while request.move and not draining.done():
                yield self._drain_progress()
                await asyncio.wait((draining,), timeout=DRAIN_REPORT_S)
            await draining
        finally:
            draining.cancel()
        yield self._drain_progress()

    def _drain_progress(self) -> scheduler_pb2.DrainResponse:
        return scheduler_pb2.DrainResponse(
            num_unfinished=self._driver.num_unfinished, num_moved=self._driver.num_moved
        )

    async def Resize(
        self, request: scheduler_pb2.ResizeRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[scheduler_pb2.ResizeResponse]:
        """Have other workers take over, and report how far that is."""
        timeout_s = request.timeout_s or RESIZE_TIMEOUT_S
        async with aclosing(self._driver.resize(tuple(request.workers), timeout_s)) as resize:
            async for at in resize:
                yield resize_progress_to_proto(at)

    async def _write(self, session: RouterSession, context: grpc.aio.ServicerContext) -> None:
        cell = await self._driver.wait_serving()
        welcome = Welcome(cell.model, cell.state, cell.block_hashes)
        await context.write(session_event_to_proto(welcome))
        beats = asyncio.create_task(_beat(session))
        try:
            async with aclosing(session.events()) as events:
                async for event in events:
                    await context.write(session_event_to_proto(event))
        finally:
            beats.cancel()

    async def _read(
        self,
        session: RouterSession,
        requests: AsyncIterator[scheduler_pb2.SessionRequest],
        watch: PeerWatch,
    ) -> None:
        cell = await self._driver.wait_serving()
        async for request in requests:
            if request.HasField("heartbeat"):
                watch.began()
            else:
                watch.heard()
                self._receive(cell, session, request)

    def _receive(
        self, cell: Cell, session: RouterSession, request: scheduler_pb2.SessionRequest
    ) -> None:
        try:
            message = session_request_from_proto(request)
        except InvalidRequestError as error:
            session.push(Refused(request.submission.request_number, error))
            return
        match message:
            case Submission():
                self._driver.submit(session, message)
            case Cancellation():
                for number in message.request_numbers:
                    self._driver.arrivals.cancel(session, number)
                cell.cancel(session, message.request_numbers)
                for number, sequence_index in message.sequences:
                    cell.cancel_sequence(session, number, sequence_index)
            case None:
                log.warning("unknown_session_message")


async def _beat(session: RouterSession) -> None:
    while True:
        # One is enough for a router that does not read.
        if session.is_sent:
            session.push(Heartbeat())
        await asyncio.sleep(INTERVAL_S)


async def _end_if_silent(session: RouterSession, watch: PeerWatch) -> None:
    session.end(UnavailableError(await watch.until_silent()))
