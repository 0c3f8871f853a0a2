"""A session with a router: its requests by the router's numbers, and events not sent yet."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from quire.contract.errors import InvalidRequestError, OverloadedError, QuireError
from quire.contract.sessions import SessionEvent

RECONNECT_AFTER_MS = 1000


class RouterSession:
    """The scheduler's side of a session.

    Args:
        max_unsent_events: bound of what is queued for a router that does not read.

    Attributes:
        groups: group ids of the session's unfinished requests, by request number.
        ended: set when the session ends.
        error: why it ended; None if the router ended it.
    """

    def __init__(self, max_unsent_events: int) -> None:
        self.groups: dict[int, int] = {}
        self.ended = asyncio.Event()
        self.error: QuireError | None = None
        self._max_unsent_events = max_unsent_events
        self._unsent: deque[SessionEvent] = deque()
        self._changed = asyncio.Event()

    def check_number(self, request_number: int) -> None:
        """Check that no unfinished request has a number.

        Raises:
            InvalidRequestError: one has it.
        """
        if request_number in self.groups:
            raise InvalidRequestError(
                "request_number", f"must be unique in the session, got {request_number} again"
            )

    def push(self, event: SessionEvent) -> None:
        """Queue an event; a router that has left too many unread loses its session instead."""
        if self.ended.is_set():
            return
        if len(self._unsent) >= self._max_unsent_events:
            self._unsent.clear()
            self.end(
                OverloadedError(
                    f"session ended: the router left {self._max_unsent_events} messages unread",
                    RECONNECT_AFTER_MS,
                )
            )
            return
        self._unsent.append(event)
        self._changed.set()

    @property
    def is_sent(self) -> bool:
        """Whether everything that was pushed is on its way."""
        return not self._unsent

    def end(self, error: QuireError | None = None) -> None:
        """End the session; the first call counts."""
        if not self.ended.is_set():
            self.error = error
            self.ended.set()
            self._changed.set()

    async def events(self) -> AsyncGenerator[SessionEvent, None]:
        """Yield what was pushed, in order, until the session ends."""
        while not self.ended.is_set():
            while self._unsent:
                yield self._unsent.popleft()
            self._changed.clear()
            if not self.ended.is_set():
                await self._changed.wait()
