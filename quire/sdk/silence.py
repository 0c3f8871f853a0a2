"""Routers that fall silent while their connection stands, as a process that is stopped does.

Streams ask for heartbeats, which come whenever nothing else does. They also show that a router
works on a request that it cannot go on with yet: see `ResumableStream.take_heartbeat`.
"""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from quire.contract.errors import UnavailableError
from quire.wire.inference import is_heartbeat

HEARTBEAT_MS = 300
# Of a router that is not left, since there is no other.
LONE_HEARTBEAT_MS = 5_000
# Several heartbeats, so that one that is late ends nothing.
LIMIT_S = 1.7
_TICK_S = 0.1


class RouterWatch:
    """Counts how long a router has sent nothing while streams wait for it, and ends these streams.

    Whatever comes shows for all streams that the router is alive. Counted is from its first
    heartbeat on, since older versions send none, and only time in which this process itself ran:
    after a stop of its own it would take every router for lost before it has read what they sent.

    Args:
        clock: in seconds, never set.
        has_others: whether there is another router to go to; else no stream is ended.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, has_others: bool = True
    ) -> None:
        self._clock = clock
        self._has_others = has_others
        # Of the synchronous client, whose threads share it.
        self._lock = threading.Lock()
        self._waiting: set[WatchedStream] = set()
        self._sends_heartbeats = False
        self._silent_s = 0.0
        self._ticks = False
        self._ticked_s = 0.0

    def waits(self, stream: "WatchedStream") -> None:
        """Count while a stream waits, and have it call `tick` if none does."""
        with self._lock:
            if not self._waiting:
                self._silent_s = 0.0
            self._waiting.add(stream)
            is_first, self._ticks = not self._ticks, True
        if is_first and self._has_others:
            stream.start_ticks()

    def got(self, stream: "WatchedStream", response: Any) -> None:
        """Count from now on; the stream does not wait any more."""
        with self._lock:
            self._waiting.discard(stream)
            self._silent_s = 0.0
            self._sends_heartbeats |= is_heartbeat(response)

    def failed(self, stream: "WatchedStream", error: BaseException | None = None) -> None:
        """A stream does not wait any more; after a lost connection, the version may be another."""
        with self._lock:
            self._waiting.discard(stream)
            if isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.UNAVAILABLE:
                self._sends_heartbeats = False

    def tick(self) -> bool:
        """Count the time since the last tick; return whether there must be another one."""
        with self._lock:
            now = self._clock()
            elapsed_s, self._ticked_s = now - self._ticked_s, now
            if not self._waiting:
                self._ticks = False
                return False
            if self._sends_heartbeats:
                self._silent_s += min(elapsed_s, 2 * _TICK_S)
            lost = list(self._waiting) if self._silent_s >= LIMIT_S else []
        for stream in lost:
            stream.give_up()
        return True


class RouterWatches:
    """The watches of a client's routers.

    Args:
        stubs: of the routers.
        resumes: whether streams that break are resumed.

    Attributes:
        heartbeat_ms: for requests to ask for; None for none, where nothing follows from them.
    """

    def __init__(self, stubs: Sequence[Any], resumes: bool) -> None:
        has_others = len(stubs) > 1
        self._watch_of = {stub: RouterWatch(has_others=has_others) for stub in stubs}
        self.heartbeat_ms = LONE_HEARTBEAT_MS if resumes else None
        if has_others:
            self.heartbeat_ms = HEARTBEAT_MS

    def watched(self, stub: Any, call: Any, on_heartbeat: Callable[[], None]) -> Any:
        """Return a call's responses as they are to be read."""
        kind = AsyncWatchedStream if isinstance(call, grpc.aio.Call) else SyncWatchedStream
        return kind(call, self._watch_of[stub], on_heartbeat)


class WatchedStream(ABC):
    """The responses of a call but for heartbeats, as long as its router is not silent.

    Args:
        call: a stream that asked for heartbeats.
        watch: of its router.
        on_heartbeat: called with each.
    """

    def __init__(
        self, call: Any, watch: RouterWatch, on_heartbeat: Callable[[], None] = lambda: None
    ) -> None:
        self._call = call
        self._watch = watch
        self._on_heartbeat = on_heartbeat
        self._is_lost = False

    def give_up(self) -> None:
        """End the stream, whose router is lost."""
        self._is_lost = True
        self._call.cancel()

    def cancel(self) -> None:
        """End the stream, which is not needed any more."""
        self._call.cancel()

    @abstractmethod
    def start_ticks(self) -> None:
        """Call the watch's `tick` from now on, until it returns False."""

    def _check_lost(self) -> None:
        if self._is_lost:
            raise UnavailableError(f"the router has sent nothing for {LIMIT_S} s") from None


class AsyncWatchedStream(WatchedStream):
    """A stream of asyncio's; raises what reading the call does, and UnavailableError."""

    def __aiter__(self) -> "AsyncWatchedStream":
        return self

    async def __anext__(self) -> Any:
        while True:
            self._watch.waits(self)
            try:
                response = await self._call.read()
            except BaseException as error:
                self._watch.failed(self, error)
                task = asyncio.current_task()
                if task is None or not task.cancelling():
                    self._check_lost()
                raise
            if response is grpc.aio.EOF:
                self._watch.failed(self)
                raise StopAsyncIteration
            self._watch.got(self, response)
            if not is_heartbeat(response):
                return response
            self._on_heartbeat()

    def start_ticks(self) -> None:
        """Call `tick` on the event loop."""
        loop = asyncio.get_running_loop()

        def tick() -> None:
            if self._watch.tick():
                loop.call_later(_TICK_S, tick)

        loop.call_later(_TICK_S, tick)


class SyncWatchedStream(WatchedStream):
    """A stream without an event loop; raises as AsyncWatchedStream."""

    def __iter__(self) -> "SyncWatchedStream":
        return self

    def __next__(self) -> Any:
        while True:
            self._watch.waits(self)
            try:
                response = next(self._call)
            except BaseException as error:
                self._watch.failed(self, error)
                self._check_lost()
                raise
            self._watch.got(self, response)
            if not is_heartbeat(response):
                return response
            self._on_heartbeat()

    def start_ticks(self) -> None:
        """Call `tick` in a thread."""

        def run() -> None:
            time.sleep(_TICK_S)
            while self._watch.tick():
                time.sleep(_TICK_S)

        threading.Thread(target=run, name="router-watch", daemon=True).start()
