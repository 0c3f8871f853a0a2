"""What clients make of the events that servers send."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import aiohttp
import pytest

from launch.bench.clients import http
from launch.bench.clients.base import RequestFailedError
from launch.bench.clients.openai import Api, Chat, Completions, OpenAiClient, Responses
from launch.bench.datasets import Sample
from launch.bench.outcome import Outcome

SAMPLE = Sample("The list class", 3, 5)


def taken(api: Api, *events: dict[str, Any]) -> Outcome:
    """What an API makes of events, one read each second from 1 s on."""
    outcome = Outcome(due=0.0, num_prompt_tokens=3)
    for second, event in enumerate(events, start=1):
        api.take(float(second), event, outcome)
    return outcome


def times(outcome: Outcome) -> list[float]:
    found: list[float] = outcome.arrivals.token_times(outcome.num_output_tokens or 0).tolist()
    return found


def choice(text: str, reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": reason, **more}]}


def delta(reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def usage(prompt: int, output: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}}


def test_a_completion_is_timed_by_its_tokens_and_counted_by_its_server() -> None:
    found = taken(
        Completions(),
        choice("a"),
        choice(""),  # a token that is part of a character
        choice("é", "length"),
        usage(7, 3),
    )
    assert times(found) == [1.0, 2.0, 3.0]
    assert (found.num_prompt_tokens, found.num_output_tokens, found.text) == (7, 3, "aé")
    assert found.ended == 3.0
    assert found.is_complete


def test_the_end_of_a_completion_is_no_token_of_it() -> None:
    found = taken(Completions(), choice("a"), choice("b"), choice("", "stop"), usage(7, 2))
    assert times(found) == [1.0, 2.0]
    assert found.ended == 3.0


def test_token_ids_and_usage_of_each_event_count_its_tokens() -> None:
    ids = taken(
        Completions(),
        choice("a", token_ids=[1]),
        choice("bcd", token_ids=[2, 3, 4, 5]),
        choice("", "length", token_ids=[]),
        usage(7, 5),
    )
    counted = taken(
        Completions(),
        {**choice("a"), **{"usage": {"prompt_tokens": 7, "completion_tokens": 1}}},
        {**choice("bcd"), **{"usage": {"prompt_tokens": 7, "completion_tokens": 5}}},
        {**choice("", "length"), **{"usage": {"prompt_tokens": 7, "completion_tokens": 5}}},
    )
    assert times(ids) == times(counted) == [1.0, 1.25, 1.5, 1.75, 2.0]


def test_usage_beside_the_last_choice_is_that_of_the_whole() -> None:
    last = {**choice("", "stop"), "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    found = taken(Completions(), choice("a"), choice("b"), last)
    assert times(found) == [1.0, 2.0]
    assert found.num_output_tokens == 2


def test_a_chat_begins_with_its_first_token_not_with_its_role() -> None:
    found = taken(
        Chat(),
        delta(role="assistant", content=""),
        delta(reasoning_content="So", reasoning="So"),
        delta(content="Yes"),
        delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{}"}}]),
        delta("stop"),
        usage(9, 3),
    )
    assert times(found) == [2.0, 3.0, 4.0]
    assert (found.text, found.ended, found.is_complete) == ("SoYes{}", 5.0, True)


def test_a_response_has_its_tokens_in_deltas_and_its_usage_at_the_end() -> None:
    counts = {"input_tokens": 9, "output_tokens": 2}
    found = taken(
        Responses(),
        {"type": "response.created", "response": {"status": "in_progress"}},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.output_text.delta", "delta": "b"},
        {"type": "response.output_text.done", "text": "ab"},
        {"type": "response.incomplete", "response": {"usage": counts}},
    )
    assert times(found) == [2.0, 3.0]
    assert (found.num_prompt_tokens, found.num_output_tokens) == (9, 2)
    assert (found.ended, found.is_complete) == (5.0, True)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.failed", "response": {"error": {"code": "x", "message": "broken"}}},
        {"type": "error", "code": "x", "message": "broken"},
    ],
)
def test_a_response_that_failed_says_why(event: dict[str, Any]) -> None:
    with pytest.raises(RequestFailedError, match=r"^broken$"):
        taken(Responses(), event)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "broken", "type": "x"}}, "broken"),
        ({"error": "broken"}, "broken"),
        ({"object": "error", "message": "broken", "code": 400}, "broken"),
        ({"error": None, "choices": []}, None),
        ([], None),
    ],
)
def test_errors_are_known_in_every_shape(body: Any, message: str | None) -> None:
    assert http.message_of(body) == message


def test_a_request_asks_for_what_its_api_calls_it() -> None:
    assert Completions().body(SAMPLE)["max_tokens"] == 5
    assert Chat().body(SAMPLE)["messages"] == [{"role": "user", "content": SAMPLE.prompt}]
    assert Responses().body(SAMPLE) == {"input": SAMPLE.prompt, "max_output_tokens": 5}


class FakeHttp:
    """Answers each request with these events."""

    def __init__(self, *events: dict[str, Any], is_done: bool = True) -> None:
        self.events, self.is_done = events, is_done
        self.sent: list[tuple[str, dict[str, Any]]] = []

    async def stream(self, path: str, body: bytes, take: http.TakeEvent) -> bool:
        self.sent.append((path, json.loads(body)))
        for event in self.events:
            take(1.0, event)
        return self.is_done


def client(fake: FakeHttp, path: str | None = None, **more_fields: Any) -> OpenAiClient:
    fields = {"ignore_eos": True, "top_k": 5}
    return OpenAiClient(cast(http.HttpClient, fake), Completions(), path, fields, more_fields)


async def test_more_fields_go_before_others_and_none_leaves_one_out() -> None:
    fake = FakeHttp(choice("a", "length"))
    await client(fake, "/other", ignore_eos=None, stream_options=None, top_k=7, user="me").send(
        SAMPLE, Outcome(0.0, 3)
    )
    fields = {"prompt": SAMPLE.prompt, "max_tokens": 5, "stream": True, "top_k": 7, "user": "me"}
    assert fake.sent == [("/other", fields)]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([choice("a"), {"error": {"message": "broken"}}], "broken"),
        ([choice("a")], "stream: must end with a finish_reason or [DONE], got neither"),
        ([{"choices": ["a"]}], "event: must be one of /v1/completions, got {'choices': ['a']}"),
        ([{"choices": 5}], "event: must be one of /v1/completions, got {'choices': 5}"),
        ([{"usage": {"prompt_tokens": "x"}}], "usage.prompt_tokens: must be an integer in [0, "),
        ([usage(7, -1)], "usage.completion_tokens: must be an integer in [0, 1048576], got -1"),
        ([usage(7, 10**15)], "usage.completion_tokens: must be an integer in [0, 1048576], got "),
        (
            [{"usage": {"completion_tokens": float("inf")}}],
            "usage.completion_tokens: must be an integer in [0, 1048576], got inf",
        ),
        ([choice("", "stop"), usage(7, 5)], "no event brought a token, of 5 by its usage"),
    ],
)
async def test_a_stream_that_is_none_fails_its_request(events: list[Any], message: str) -> None:
    with pytest.raises(RequestFailedError) as caught:
        await client(FakeHttp(*events, is_done=False)).send(SAMPLE, Outcome(0.0, 3))
    assert caught.value.message.startswith(message)


class Content:
    """A body that is read in these pieces."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    async def iter_any(self) -> AsyncIterator[bytes]:
        for each in self._pieces:
            yield each


async def read(*pieces: bytes) -> tuple[list[tuple[float, Any]], bool]:
    events: list[tuple[float, Any]] = []
    content = cast(aiohttp.StreamReader, Content(pieces))
    is_done = await http._read_events(content, lambda at, event: events.append((at, event)))
    return events, is_done


async def test_events_are_read_however_they_are_cut() -> None:
    stream = (
        b': alive\n\ndata: {"a": 1}\n\nevent: x\r\ndata:{"a": "\xc3\xa9"}\r\n\r\ndata: [DONE]\n\n'
    )
    for size in (1, 2, 7, len(stream)):
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        events, is_done = await read(*pieces)
        assert [event for _, event in events] == [{"a": 1}, {"a": "é"}]
        assert is_done
    assert await read(b"data: [DONE]") == ([], True)
    # Those of one read have one time.
    [(first, _), (second, _)], _ = await read(stream)
    assert first == second


@pytest.mark.parametrize("payload", [b"{", b"5", b"\xff", b"[" * 100_000])
async def test_an_event_that_is_no_object_fails_its_request(payload: bytes) -> None:
    with pytest.raises(RequestFailedError, match=r"^event: must be"):
        await read(b"data: " + payload + b"\n\n")


async def test_a_line_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_OF_A_LINE", 100)
    with pytest.raises(RequestFailedError, match="at most 100 bytes"):
        await read(*[b"data: " + json.dumps("x" * 60).encode()] * 2)
