"""The reader at the end of a stream: what it gets, how much it may leave unread, for how long."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from quire.contract.errors import QuireError, ReaderStalledError, SupersededError
from quire.contract.outputs import Event, Finished

if TYPE_CHECKING:
    from router.requests.stream import RequestStream

# Of an output. What HTTP/2 holds on the way comes before it: at least 64 KiB of messages.
MAX_UNREAD_TOKENS = 256


class StreamOwner(Protocol):
    """Decides where a request runs."""

    def pause(self, stream: "RequestStream") -> None:
        """Its client leaves too much unread."""

    def read_on(self, stream: "RequestStream") -> None:
        """Its client has read all of that."""


class Backlog:
    """Counts the tokens that a client has not read.

    Args:
        max_tokens: that it may leave unread; beyond, its request is paused.
    """

    def __init__(self, max_tokens: float) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0

    def add(self) -> bool:
        """Count a token; return whether that is one too many, once until they are read."""
        self._num_tokens += 1
        return self._num_tokens == self._max_tokens

    def clear(self) -> bool:
        """Count all as read; return whether they were too many."""
        was_full = self._num_tokens >= self._max_tokens
        self._num_tokens = 0
        return was_full


class StreamReader:
    """A client that reads a stream, until another reader takes the stream over.

    Args:
        stream: to read from now on.

    Attributes:
        is_done: whether it has read all that there will be.
    """

    def __init__(self, stream: "RequestStream") -> None:
        self.is_done = False
        self._stream = stream
        stream.reader = self

    @property
    def is_current(self) -> bool:
        """Whether no other reader has taken the stream over."""
        return self._stream.reader is self

    def fail(self, error: QuireError) -> None:
        """End the request with an error, unless it is another reader's by now."""
        if self.is_current:
            self._stream.fail(error)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield Started, a Delta whenever there is something new, and Finished for each output.

        Raises:
            QuireError: the request failed, or another reader goes on with it (SupersededError).
        """
        stream = self._stream
        wants_breakdown = stream.request.include_time_breakdown
        while not self.is_done:
            await stream.unread.wait()
            self._check_current()
            # All at once: what comes after a yield belongs to the next round.
            events = stream.take_unread()
            has_ended, error = stream.ended, stream.error
            last = events[-1] if has_ended and events else None
            for event in events:
                self._check_current()
                if event is last and isinstance(event, Finished) and wants_breakdown:
                    yield replace(event, time_breakdown=stream.ledger.breakdown())
                else:
                    yield event
            self._check_current()
            self.is_done = has_ended or error is not None
            if error is not None:
                raise error

    def _check_current(self) -> None:
        if not self.is_current:
            raise SupersededError(f"request_id: {self._stream.request_id} was resumed")


class ReaderWatch:
    """Ends a call whose client does not take a message for too long.

    In `with`, each write stands between `begin` and `end`. There is one timer for the call, however
    many messages it has.

    Args:
        limit_s: for one message, in seconds.

    Raises:
        ReaderStalledError: in the place of the write.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "in a call's task"
        self._task = task
        self._began_s: float | None = None
        self._has_stalled = False

    def begin(self) -> None:
        """A message is about to be written."""
        self._began_s = self._loop.time()

    def end(self) -> None:
        """It is on its way."""
        self._began_s = None

    def _look(self) -> None:
        began_s = self._loop.time() if self._began_s is None else self._began_s
        if began_s + self._limit_s > self._loop.time():
            self._timer = self._loop.call_at(began_s + self._limit_s, self._look)
        else:
            self._has_stalled = True
            self._task.cancel()

    def __enter__(self) -> Self:
        self._look()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        # Its client may have gone just now, too.
        if self._has_stalled and not self._task.uncancel():
            raise ReaderStalledError(
                f"the client has read nothing for {self._limit_s:g} s; "
                "Resume goes on after what it has received"
            ) from None
