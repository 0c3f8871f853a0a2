"""Clients over HTTP that go on where their stream broke, and what each of them has received."""

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import openai

from examples.resuming_openai_client import resuming
from tests.chaos.http_jobs import Job, Way

_BROKEN = (openai.APIConnectionError, httpx.TransportError)
# Before they are sent again: the router that comes up may not have a cell yet, or the request may
# not be known to have lost its client.
_LATER = frozenset((409, 429, 503))
_PATHS = {Way.COMPLETIONS_BY_ID: "/completions", Way.CHAT_BY_ID: "/chat/completions"}
_TIMEOUT_S = 120.0
_PAUSE_S = 0.2
# Ids and times: those of tool calls are a function of the request's id.
_VOLATILE = frozenset(("id", "created_at", "completed_at", "item_id"))


@dataclass(slots=True)
class Break:
    """A stream that broke in its midst.

    Attributes:
        is_kill: whether its router died; else its client cut the connection.
        at: when its last event before that came, in seconds of the monotonic clock.
        resumed_at: when the first one after that came, or the stream ended; 0.0 if it did not.
        path: by which request it went on.
    """

    is_kill: bool
    at: float
    resumed_at: float = 0.0
    path: str = ""


@dataclass(slots=True)
class HttpStream:
    """One stream, as its client saw it.

    Attributes:
        job: what was asked for.
        cut_after: events after which its client cuts the connection, once; None for never.
        pieces: what each event said, for each choice, in the order of their coming.
        tokens: of each choice.
        ids: that its answer had, with the model's name; there must be one.
        seed: that the router reported.
        breaks: so far.
        error: that ended it; empty if none did.
        last_at: when its last event came.
        connected_at: when the first event of its present connection came.
    """

    job: Job
    cut_after: int | None = None
    pieces: dict[int, list[str]] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    seed: int | None = None
    breaks: list[Break] = field(default_factory=list)
    error: str = ""
    last_at: float = 0.0
    connected_at: float = 0.0

    @property
    def num_pieces(self) -> int:
        """Events so far."""
        return sum(map(len, self.pieces.values()))

    @property
    def seeded(self) -> Job:
        """The job with the seed that was drawn for it: what gives the same tokens again."""
        return self.job if "seed" in self.job.body else replace(self.job, seed=self.seed)

    def watch(self, events: Iterable[Any], path: str) -> Iterator[Any]:
        """Yield events of one connection, and keep when they came and how it broke.

        Args:
            events: as they come.
            path: of the request that they answer.
        """
        is_begun = False
        try:
            for event in events:
                now = time.monotonic()
                self._went_on(now, path)
                if not is_begun:
                    is_begun, self.connected_at = True, now
                self.last_at = now
                yield event
                if self.cut_after is not None and self.num_pieces >= self.cut_after:
                    self.cut_after = None
                    self.breaks.append(Break(False, now))
                    getattr(events, "close", lambda: None)()
                    raise httpx.ReadError("cut by its client")
        except _BROKEN:
            if is_begun and (not self.breaks or self.breaks[-1].resumed_at):
                self.breaks.append(Break(True, self.last_at))
            raise
        self._went_on(time.monotonic(), path)

    def _went_on(self, now: float, path: str) -> None:
        if self.breaks and not self.breaks[-1].resumed_at:
            self.breaks[-1].resumed_at, self.breaks[-1].path = now, path

    def take(self, index: int, piece: dict[str, Any]) -> None:
        """Keep what an event said."""
        tokens = piece.get("token_ids") or ()
        self.tokens.setdefault(index, []).extend(tokens)
        self.pieces.setdefault(index, []).append(json.dumps(piece, sort_keys=True))


class Clients:
    """Stock clients of a server, which threads share.

    Args:
        base_url: of the API.
    """

    def __init__(self, base_url: str) -> None:
        self._openai = openai.OpenAI(base_url=base_url, api_key="none", timeout=_TIMEOUT_S)
        self._httpx = httpx.Client(base_url=base_url, timeout=_TIMEOUT_S)

    def close(self) -> None:
        """Close their connections."""
        self._openai.close()
        self._httpx.close()

    def follow(self, stream: HttpStream) -> HttpStream:
        """Send a job, read its stream to the end, and keep what came; errors are kept in it."""
        try:
            match stream.job.way:
                case Way.COMPLETIONS:
                    _by_resume(self._openai.completions.create, stream)
                case Way.CHAT:
                    _by_resume(self._openai.chat.completions.create, stream)
                case Way.RESPONSES:
                    _by_starting_after(self._openai, stream)
                case _:
                    _by_last_event_id(self._httpx, stream)
        except Exception as error:
            # Whatever a user would have seen is what chaos counts.
            stream.error = f"{type(error).__name__}: {error}"
        return stream


def _by_resume(create: Callable[..., Any], stream: HttpStream) -> None:
    def watched(**request: Any) -> Iterator[Any]:
        path = "POST, resume" if "resume" in request["extra_body"] else "POST"
        yield from stream.watch(create(**request), path)

    for chunk in resuming(watched, **stream.job.arguments):
        _take_chunk(stream, chunk.model_dump(mode="json", exclude_unset=True))


def _take_chunk(stream: HttpStream, chunk: dict[str, Any]) -> None:
    stream.ids.add(f"{chunk['id']} of {chunk['model']}")
    for choice in chunk["choices"]:
        stream.seed = choice["seed"]
        stream.take(choice["index"], _lasting(choice))


def _by_last_event_id(client: httpx.Client, stream: HttpStream) -> None:
    headers = {"x-request-id": uuid.uuid4().hex}
    while True:
        try:
            if _read_by_id(client, headers, stream):
                return
        except _BROKEN:
            pass
        time.sleep(_PAUSE_S)


def _read_by_id(client: httpx.Client, headers: dict[str, str], stream: HttpStream) -> bool:
    """Read a stream; return whether that was all of it.

    Mutates: headers, by the number of the last event.
    """
    body = {**stream.job.body, "stream": True}
    path = _PATHS[stream.job.way]
    with client.stream("POST", path, json=body, headers=headers) as response:
        if response.status_code in _LATER:
            return False
        if response.is_error:
            raise RuntimeError(f"{response.status_code}: {response.read().decode()}")
        request = "POST, Last-Event-ID" if "last-event-id" in headers else "POST"
        for event_id, data in stream.watch(_events_of(response), request):
            if data == "[DONE]":
                return True
            headers["last-event-id"] = event_id
            _take_chunk(stream, json.loads(data))
    return False


def _events_of(response: httpx.Response) -> Iterator[tuple[str, str]]:
    """Yield id and data of each event."""
    event: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            event[name] = value
        elif "data" in event:
            yield event.get("id", ""), event["data"]
            event = {}


def _by_starting_after(client: openai.OpenAI, stream: HttpStream) -> None:
    arguments, create = stream.job.arguments, client.responses.create
    begun: dict[str, Any] = {}
    number = -1

    def ask() -> tuple[Iterable[Any], str]:
        if not begun:
            return create(**arguments, stream=True), "POST"
        if stream.job.is_background:
            try:
                events = client.responses.retrieve(begun["id"], stream=True, starting_after=number)
            except openai.NotFoundError:
                pass
            else:
                return events, "GET, starting_after"
        extra = {**arguments["extra_body"], "resume": {**begun, "starting_after": number}}
        return create(**{**arguments, "extra_body": extra}, stream=True), "POST, resume"

    while True:
        try:
            for event in stream.watch(*ask()):
                fields = event.model_dump(mode="json", exclude_unset=True)
                number = fields["sequence_number"]
                if response := fields.get("response"):
                    stream.ids.add(f"{response['id']} of {response['model']}")
                    stream.seed = response["seed"]
                    begun = {name: response[name] for name in ("id", "seed", "created_at")}
                    begun["system_fingerprint"] = response["system_fingerprint"]
                stream.take(0, _lasting(fields))
            return
        except _BROKEN:
            time.sleep(_PAUSE_S)


def _lasting(value: Any) -> Any:
    """Return what an event says, without ids and times."""
    if isinstance(value, dict):
        return {name: _lasting(each) for name, each in value.items() if name not in _VOLATILE}
    return [_lasting(each) for each in value] if isinstance(value, list) else value
