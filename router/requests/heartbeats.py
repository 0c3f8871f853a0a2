"""Heartbeats of streams: a router that sends nothing for long is not taken for one that is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc

from quire.contract.errors import InvalidRequestError
from quire.wire.inference import heartbeat_to_proto

SHORTEST_MS, LONGEST_MS = 100, 60_000

# Of a message of the stream.
Write: TypeAlias = Callable[[Any], Awaitable[None]]


@asynccontextmanager
async def heartbeats(
    context: grpc.aio.ServicerContext, interval_ms: int | None
) -> AsyncIterator[Write]:
    """Yield what writes to a stream; a heartbeat is sent where nothing was written for a while.

    Args:
        context: of the call.
        interval_ms: how long that is, at most twice that; None sends none.

    Raises:
        InvalidRequestError: it is out of bounds.
    """
    if interval_ms is None:
        yield context.write
        return
    if not SHORTEST_MS <= interval_ms <= LONGEST_MS:
        raise InvalidRequestError(
            "heartbeat_ms", f"must be in [{SHORTEST_MS}, {LONGEST_MS}], got {interval_ms}"
        )
    stream = _Stream(context)
    beats = asyncio.create_task(stream.beat(1e-3 * interval_ms))
    try:
        yield stream.write
    finally:
        # A status may follow only a write that is over.
        async with stream.lock:
            beats.cancel()
        await asyncio.gather(beats, return_exceptions=True)


class _Stream:
    """Writes to a call, one message at a time."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context
        self._is_quiet = True
        self.lock = asyncio.Lock()

    async def write(self, response: Any) -> None:
        async with self.lock:
            self._is_quiet = False
            await self._context.write(response)

    async def beat(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            if self._is_quiet:
                await self.write(heartbeat_to_proto())
            self._is_quiet = True
