"""Requests whose client is gone: they run on for a while, and a client that comes back attaches.

What an orphan has produced waits in its stream, which is paused like that of any client that does
not read. What all of them may come to hold is bounded; beyond, the oldest one ends.
"""

import asyncio
from typing import Protocol

from quire.contract.inputs import ResumeInput
from router.requests.output import bytes_per_position
from router.requests.reader import MAX_UNREAD_TOKENS, StreamReader
from router.requests.resume import shows_at_end
from router.requests.stream import RequestStream

# What all orphans may hold, as `most_bytes` counts.
MAX_BYTES = 2**28
# Of a token, with its text, as Python's objects.
_BYTES_PER_TOKEN = 64


class Requests(Protocol):
    """Runs requests."""

    @property
    def requests(self) -> dict[str, RequestStream]:
        """Those that are open, by id."""

    def open(self, stream: RequestStream) -> None:
        """Start a request; raises RequestExistsError."""

    def close(self, stream: RequestStream) -> None:
        """Forget a request, and end it."""

    def abort(self, request_id: str, caller: str) -> bool:
        """End a caller's request with ABORT; return whether there was one."""


class Orphans:
    """The requests that run on without a client; knows which client may have one back.

    Args:
        requests: runs them.
        grace_time_s: for how long they run on; 0 ends them at once.
        max_bytes: what they may hold, all together.

    Attributes:
        num_attached: requests whose client has come back, so far.
    """

    def __init__(self, requests: Requests, grace_time_s: float, max_bytes: int = MAX_BYTES) -> None:
        self.num_attached = 0
        self._requests = requests
        self._grace_time_s = grace_time_s
        self._max_bytes = max_bytes
        # The oldest one first.
        self._timers: dict[RequestStream, asyncio.TimerHandle] = {}
        self._bytes: dict[RequestStream, int] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def open(self, stream: RequestStream) -> None:
        """Start a request. An orphan of its id and its caller has no use any more, and ends.

        Raises:
            RequestExistsError: its id is in use.
        """
        older = self._requests.requests.get(stream.request_id)
        if older in self._timers and older.caller.name == stream.caller.name:
            self._end(older)
        self._requests.open(stream)

    async def resume(self, stream: RequestStream, resumed: ResumeInput) -> RequestStream:
        """Start a request where its client stands, unless it runs here.

        Args:
            stream: new, of the request.
            resumed: what its client has received.

        Returns:
            What is to be read: `stream`, or the one that runs, whose older reader is superseded.

        Raises:
            RequestExistsError: its id is in use by another request.
            InvalidRequestError: the text of received tokens is another.
        """
        older = self._requests.requests.get(stream.request_id)
        if older and stream.is_same_request(older) and older.attach(stream, resumed):
            self._forget(older)
            self.num_attached += 1
            return older
        await stream.take_over(resumed)
        self.open(stream)
        return stream

    def left(self, stream: RequestStream, reader: StreamReader) -> None:
        """A reader's call is over: it has read all, or its client has gone."""
        if not reader.is_current:
            return
        need = most_bytes(stream)
        if (
            reader.is_done
            or not stream.may_be_resumed
            or self._grace_time_s == 0
            or need > self._max_bytes
        ):
            self._requests.close(stream)
            return
        while sum(self._bytes.values()) + need > self._max_bytes:
            self._end(next(iter(self._timers)))
        self._bytes[stream] = need
        loop = asyncio.get_running_loop()
        self._timers[stream] = loop.call_later(self._grace_time_s, self._end, stream)
        stream.trail.left(stream.num_output_tokens, self._grace_time_s)

    def abort(self, request_id: str, caller: str) -> bool:
        """End a caller's request; its stream finishes with ABORT. Returns whether there was one."""
        aborted = self._requests.abort(request_id, caller)
        stream = self._requests.requests.get(request_id)
        if stream in self._timers and stream.caller.name == caller:
            self._end(stream)
            return True
        return aborted

    def seed_of(self, request_id: str, caller: str) -> int | None:
        """Return the seed of a caller's request, with a client or without; None for none."""
        stream = self._requests.requests.get(request_id)
        if stream is None or stream.caller.name != caller:
            return None
        return stream.sampling_params.seed

    def stop(self) -> None:
        """End all, and those that come from now on at once: no client could come back to them."""
        self._grace_time_s = 0
        for stream in list(self._timers):
            self._end(stream)

    def _end(self, stream: RequestStream) -> None:
        self._forget(stream)
        self._requests.close(stream)

    def _forget(self, stream: RequestStream) -> None:
        self._bytes.pop(stream, None)
        if timer := self._timers.pop(stream, None):
            timer.cancel()


def most_bytes(stream: RequestStream) -> int:
    """Return what a request may come to hold while nobody reads it, roughly."""
    params, num_prompt_tokens = stream.sampling_params, len(stream.request.prompt_token_ids)
    num_tokens = stream.num_output_tokens
    if shows_at_end(params):
        num_tokens = (params.max_tokens or 0) * params.width
    else:
        num_tokens += MAX_UNREAD_TOKENS * params.n
    num_bytes = _BYTES_PER_TOKEN * (num_prompt_tokens + num_tokens)
    if params.logprobs is not None:
        num_bytes += num_tokens * bytes_per_position(params.logprobs)
    if params.prompt_logprobs is not None:
        num_bytes += num_prompt_tokens * bytes_per_position(params.prompt_logprobs)
    return num_bytes
