"""A table of orphans before requests that a test runs itself."""

import asyncio

from quire.contract.callers import Caller
from quire.contract.errors import (
    RequestExistsError,
    SupersededError,
)
from quire.contract.inputs import GenerateInput, ReceivedOutput, ResumeInput
from quire.contract.outputs import (
    Event,
    FinishReason,
    Started,
)
from quire.contract.sampling_params import SamplingParams
from quire.observe.tracing import Span, TraceContext
from router.requests.orphans import Orphans
from router.requests.reader import StreamReader
from router.requests.stream import RequestStream
from router.requests.time_ledger import TimeLedger
from router.requests.validate import ValidGenerateRequest
from tests.unit.router.test_stream import MODEL, CharDetokenizer

SEED = 9
STARTED = Started("id", 2, SEED, max_tokens=1000)


class FakeRequests:
    """Runs none; the tests bring the tokens."""

    def __init__(self) -> None:
        self.requests: dict[str, RequestStream] = {}
        self.closed: list[RequestStream] = []
        self.paused: list[RequestStream] = []
        self.closed_one = asyncio.Event()

    def open(self, stream: RequestStream) -> None:
        older = self.requests.get(stream.request_id)
        if older is not None:
            if not stream.continues(older):
                raise RequestExistsError("in use")
            older.fail(SupersededError("resumed"))
        self.requests[stream.request_id] = stream
        stream.owner = self
        if not stream.ended:
            stream.mark_queued(SEED)

    def close(self, stream: RequestStream) -> None:
        if self.requests.get(stream.request_id) is stream:
            del self.requests[stream.request_id]
        self.closed.append(stream)
        self.closed_one.set()
        stream.drop()

    def abort(self, request_id: str, caller: str) -> bool:
        stream = self.requests.get(request_id)
        if stream is None or stream.ended or stream.caller.name != caller:
            return False
        stream.finish(FinishReason.ABORT)
        return True

    def pause(self, stream: RequestStream) -> None:
        self.paused.append(stream)

    def read_on(self, stream: RequestStream) -> None:
        self.paused.remove(stream)


def make(
    seed: int | None = None,
    prompt: tuple[int, ...] = (5, 6),
    caller: str = "alice",
    request_id: str = "id",
    resumable: bool = True,
    deadline_s: float | None = None,
    **params: object,
) -> RequestStream:
    valid = SamplingParams(**{"max_tokens": 1000, "seed": seed, **params})
    request = ValidGenerateRequest(request_id, MODEL, prompt, valid, resumable=resumable)
    span = Span(TraceContext.new())
    return RequestStream(
        request, CharDetokenizer, TimeLedger(), span, Caller(caller), deadline_s=deadline_s
    )


def resume(text: str = "", *received: ReceivedOutput, **fields: object) -> ResumeInput:
    outputs = received or (ReceivedOutput(0, tuple(map(ord, text)), len(text.encode())),)
    return ResumeInput(GenerateInput("", SamplingParams()), SEED, received=outputs, **fields)


def push(stream: RequestStream, text: str, index: int = 0) -> None:
    for character in text:
        stream.push_token(index, ord(character))


async def read(reader: StreamReader, count: int) -> list[Event]:
    """Read so many events, and leave."""
    events, seen = reader.events(), []
    for _ in range(count):
        seen.append(await anext(events))
    await events.aclose()
    return seen


class Table:
    """Orphans, and a stream that has been read up to "abc"."""

    def __init__(self, grace_time_s: float = 3600.0, **settings: int) -> None:
        self.requests = FakeRequests()
        self.orphans = Orphans(self.requests, grace_time_s, **settings)

    async def drop(self, stream: RequestStream, text: str = "abc") -> StreamReader:
        """Open it, read it, and go."""
        reader = await self.connect(stream, text)
        self.orphans.left(stream, reader)
        return reader

    async def connect(self, stream: RequestStream, text: str = "abc") -> StreamReader:
        self.orphans.open(stream)
        reader = StreamReader(stream)
        push(stream, text)
        assert len(await read(reader, 2 if text else 1)) == (2 if text else 1)
        return reader

    async def come_back(self, stream: RequestStream, resumed: ResumeInput) -> StreamReader:
        return StreamReader(await self.orphans.resume(stream, resumed))
