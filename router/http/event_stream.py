"""Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

from router.http.call import HttpCall, to_json

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    # A proxy that collects events before it passes them on would hide what a stream is for.
    "x-accel-buffering": "no",
}
# No blank line ends it: behind events with ids that would be an event without data to some clients,
# which then give up. So it is the first line of the event that follows.
KEEP_ALIVE = b": keep-alive\n"
DONE = b"data: [DONE]\n\n"


def event_bytes(data: bytes, event_id: str = "", event: str = "") -> bytes:
    """Return an event as it is sent.

    Args:
        data: one line.
        event_id: by which a client says that it has received it; "" for none.
        event: its type; "" for none.
    """
    head = f"event: {event}\n" if event else ""
    if event_id:
        head += f"id: {event_id}\n"
    return b"%bdata: %b\n\n" % (head.encode(), data)


def while_waiting(call: HttpCall, is_stream: bool) -> AbstractAsyncContextManager[object]:
    """Return what sends comments meanwhile, where the answer is going to be a stream."""
    return EventStream(call) if is_stream else nullcontext()


class EventStream:
    """The answer to a call, as events. Use it in `async with`.

    The answer begins with the first event, so that a request which is refused is answered with the
    status of its error; or when the call has waited for long, with a comment, which follows
    whenever nothing else was sent for a while. After that an error is an event.

    Args:
        call: to answer.
        keep_alive: what is sent while the answer waits: lines of comments, or an event with data.
    """

    def __init__(self, call: HttpCall, keep_alive: bytes = KEEP_ALIVE) -> None:
        self._call = call
        self._keep_alive_event = keep_alive
        self._is_quiet = True

    async def send_json(self, content: Any, event_id: str = "", event: str = "") -> None:
        """Send an event that carries JSON; arguments as of `event_bytes`."""
        await self.write(event_bytes(to_json(content), event_id, event))

    async def write(self, content: bytes) -> None:
        """Send events as they stand; none begin the answer, and count as silence."""
        self._is_quiet = self._is_quiet and not content
        await self._begin()
        await self._call.write(content)

    async def end(self, last: bytes = b"") -> None:
        """End the answer.

        Args:
            last: events before the end.
        """
        await self._begin()
        await self._call.write(last, is_last=True)

    async def _begin(self) -> None:
        if self._call.status is None:
            await self._call.begin(HTTPStatus.OK, HEADERS)

    async def _keep_alive(self) -> None:
        # Beside other writes: each waits until there is room, and is sent in one piece then.
        while True:
            await asyncio.sleep(self._call.keep_alive_s)
            if self._is_quiet:
                await self.write(self._keep_alive_event)
            self._is_quiet = True

    async def __aenter__(self) -> Self:
        self._beats = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._beats.cancel()
        await asyncio.gather(self._beats, return_exceptions=True)
