"""Requests whose user has left: told to their router, which would let them run on for a while."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from quire.sdk.resume import ResumableStream

# For a router to answer; it is not waited for but where the client closes.
LIMIT_S = 1.0


class Departures:
    """Calls of Abort that nobody waits for. None raises; a router that is lost gets none.

    Args:
        make_request: returns the message of a request id.
    """

    def __init__(self, make_request: Callable[..., Any]) -> None:
        self._make_request = make_request
        self._calls: set[Any] = set()

    @contextmanager
    def aborted_if_left(self, stream: ResumableStream, metadata: Any) -> Iterator[None]:
        """Have its router end a stream that is left before its end."""
        try:
            yield
        finally:
            if stream.needs_abort:
                self.abort(stream.stub, stream.request_id, metadata)

    def abort(self, stub: Any, request_id: str, metadata: Any) -> None:
        """Have a router end a request.

        Args:
            stub: of the router, with an event loop or without.
            request_id: of the request.
            metadata: of the call.
        """
        begin = getattr(stub.Abort, "future", stub.Abort)
        request = self._make_request(request_id=request_id)
        with suppress(Exception):  # the channel or the event loop is closed
            call = begin(request, timeout=LIMIT_S, metadata=metadata)
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def until_sent(self) -> None:
        """Return when all are answered or lost."""
        await asyncio.gather(*self._calls, return_exceptions=True)

    def wait_until_sent(self) -> None:
        """Return when all are answered or lost, without an event loop."""
        for call in list(self._calls):
            with suppress(Exception):
                call.result(timeout=2 * LIMIT_S)
