"""Announces a worker to its scheduler again and again, since a scheduler may restart."""

import asyncio
from typing import cast

import grpc

from quire.contract.sessions import Announcement
from quire.observe.log import get_logger
from quire.rpc import Role, TlsFiles, open_channel
from quire.rpc.call_metadata import PROTOCOL_METADATA
from quire.security.handshake import handshake_failure
from quire.v1 import scheduler_pb2_grpc
from quire.version import __version__
from quire.wire.scheduler import announcement_to_proto

INTERVAL_S = 2.0
# While the scheduler cannot be reached: it may be starting.
RETRY_INTERVAL_S = 0.5
TIMEOUT_S = 10.0

log = get_logger()


class Announcer:
    """Announces a worker until it is stopped.

    An answer of the scheduler is logged when it differs from the last one. Announcements go on
    after a refusal, which may end: for example when the worker that holds the rank dies.

    Args:
        scheduler: address of the scheduler, "host:port".
        rank: rank that the worker claims.
        address: "host:port" at which the scheduler reaches this worker.
        tls: certificate of this worker; None connects without TLS.
    """

    def __init__(
        self, scheduler: str, rank: int, address: str, tls: TlsFiles | None = None
    ) -> None:
        self._tls = tls
        self._scheduler = scheduler
        self._announcement = Announcement(rank, address, __version__)
        self._last_answer = ""
        self._task = asyncio.create_task(self._run())

    async def run(self) -> None:
        """Return when it is stopped; announcing goes on where this is cancelled."""
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Stop announcing."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        async with open_channel(self._scheduler, self._tls, Role.SCHEDULER) as channel:
            stub = cast(
                "scheduler_pb2_grpc.SchedulerServiceAsyncStub",
                scheduler_pb2_grpc.SchedulerServiceStub(channel),
            )
            while True:
                await asyncio.sleep(await self._announce(stub))

    async def _announce(self, stub: "scheduler_pb2_grpc.SchedulerServiceAsyncStub") -> float:
        """Announce once and return how long to wait before the next time, in seconds."""
        where = {"scheduler": self._scheduler, "rank": self._announcement.rank}
        try:
            await stub.AnnounceWorker(
                announcement_to_proto(self._announcement),
                timeout=TIMEOUT_S,
                metadata=PROTOCOL_METADATA,
            )
        except grpc.aio.AioRpcError as error:
            unreachable = error.code() is grpc.StatusCode.UNAVAILABLE
            details = error.details() or ""
            # The connection's own text differs from one attempt to the next.
            reason = handshake_failure(details) or "unreachable"
            if not unreachable:
                reason = f"{error.code().name}: {details}"
            if self._is_news(reason):
                log.warning("announcement_failed", **where, error=reason)
            return RETRY_INTERVAL_S if unreachable else INTERVAL_S
        if self._is_news("accepted"):
            log.info("announced", **where, address=self._announcement.address)
        return INTERVAL_S

    def _is_news(self, answer: str) -> bool:
        before, self._last_answer = self._last_answer, answer
        return answer != before
