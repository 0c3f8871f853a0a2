"""Heartbeats of streams: a router that sends nothing for long is not taken for one that is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from quire.contract.errors import InvalidRequestError

SHORTEST_MS, LONGEST_MS = 100, 60_000

# Of a message of the stream.
Write: TypeAlias = Callable[[Any], Awaitable[None]]


def check_interval(interval_ms: int | None) -> None:
    """Check how often a client wants a heartbeat.

    Raises:
        InvalidRequestError: it is out of bounds.
    """
    if interval_ms is not None and not SHORTEST_MS <= interval_ms <= LONGEST_MS:
        raise InvalidRequestError(
            "heartbeat_ms", f"must be in [{SHORTEST_MS}, {LONGEST_MS}], got {interval_ms}"
        )


@asynccontextmanager
async def heartbeats(write: Write, heartbeat: Any, interval_ms: int | None) -> AsyncIterator[Write]:
    """Yield what writes to a stream; a heartbeat is sent where nothing was written for a while.

    Args:
        write: of a message; never called again before it has returned.
        heartbeat: the message.
        interval_ms: how long that is, at most twice that; None sends none.
    """
    if interval_ms is None:
        yield write
        return
    stream = _Stream(write, heartbeat)
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

    def __init__(self, write: Write, heartbeat: Any) -> None:
        self._write = write
        self._heartbeat = heartbeat
        self._is_quiet = True
        self.lock = asyncio.Lock()

    async def write(self, message: Any) -> None:
        async with self.lock:
            self._is_quiet = False
            await self._write(message)

    async def beat(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            if self._is_quiet:
                await self.write(self._heartbeat)
            self._is_quiet = True
