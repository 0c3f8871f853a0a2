"""What chaos over HTTP reports: whatever differs from an undisturbed stream, or from its schema."""

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from examples.resuming_openai_client import resuming
from quire.contract.errors import InvalidRequestError
from router.http.errors import HttpError, openai_error
from tests.chaos import http_kills
from tests.chaos.drawn_grammars import WEIGHTS, drawn, is_of_schema
from tests.chaos.hostile_http import HostileRequests, Request
from tests.chaos.http_attack import why_wrong
from tests.chaos.http_clients import Break, HttpStream
from tests.chaos.http_fields import ROUTES, kinds_of
from tests.chaos.http_jobs import JOBS
from tests.chaos.http_kills import Load, difference, judge, strike
from tests.chaos.http_wire import Answer

JOB = JOBS[0]


def stream(*pieces: tuple[str, int], ids: tuple[str, ...] = ("a",), error: str = "") -> HttpStream:
    made = HttpStream(JOB, ids=set(ids), error=error)
    for text, token_id in pieces:
        made.take(0, {"text": text, "token_ids": [token_id]})
    return made


WHOLE = stream(("a", 1), ("b", 2))


@pytest.mark.parametrize(
    ("came", "how"),
    [
        (stream(("a", 1), ("b", 2)), ""),
        (stream(("a", 1)), "loss"),
        (stream(("a", 1), ("b", 2), ("b", 2)), "duplicate"),
        (stream(("a", 1), ("b", 3)), "tokens"),
        (stream(("a", 1), ("c", 2)), "text"),
        (stream(("a", 1), ("b", 2), ids=("a", "b")), "id"),
        (stream(("a", 1), error="ConflictError: 409"), "error"),
    ],
)
def test_a_stream_that_differs_is_reported(came: HttpStream, how: str) -> None:
    assert difference(came, WHOLE) == how
    came.breaks = [Break(True, 1.0, 2.5, "POST, resume"), Break(False, 3.0, 3.5, "POST, resume")]
    lines, num_wrong = judge([came], {JOB: WHOLE}, kills=1)
    assert num_wrong == bool(how)
    assert f"differing from the undisturbed run: {f'1 by {how}' if how else 'none'}" in lines
    assert "| all | 1 | 1 | 1 | POST, resume 2 | 0.50 | 0.50 | 1.50 |" in lines


def refused(field: str, status: int = 400, **change: Any) -> Answer:
    body = openai_error(InvalidRequestError(field, "must be a number, got a string"))
    body["error"] |= change
    headers = {"content-type": "application/json"}
    return Answer(status, headers, json.dumps(body).encode())


SENT = Request("wrong types", b"", "/v1/completions", param="resume.seed")


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        (refused("resume.seed"), True),
        (refused("resume"), True),
        (refused("seed"), False),
        (refused("resume.seed", 404), False),
        (refused("resume.seed", 500), False),
        (refused("resume.seed", message=None), False),
        (refused("resume.seed", other=1), False),
        (replace(refused("resume.seed"), headers={}), False),
        (replace(refused("resume.seed"), body=b"refused"), False),
        (Answer(200), False),
        (None, False),
    ],
)
def test_an_answer_to_what_is_wrong_must_name_it(answer: Answer | None, is_right: bool) -> None:
    assert (why_wrong(SENT, answer) == "") == is_right


def test_what_may_be_taken_is_answered_in_any_good_way() -> None:
    sent = replace(SENT, is_wrong=False, param="")
    body = json.dumps(openai_error(HttpError(HTTPStatus.NOT_FOUND, "no such path"))).encode()
    assert why_wrong(sent, Answer(404, {"content-type": "application/json"}, body)) == ""
    assert why_wrong(sent, Answer(200)) == ""
    assert why_wrong(sent, Answer(302)) != ""
    assert why_wrong(sent, Answer(503)) != ""


def test_hostile_requests_follow_from_the_seed_and_know_every_field() -> None:
    first, again = (list(itertools.islice(HostileRequests(3), 300)) for _ in range(2))
    assert first == again
    assert first != list(itertools.islice(HostileRequests(4), 300))
    assert len({each.kind for each in first}) == 7
    for route in ROUTES:
        assert "model" in kinds_of(route)
    kinds = kinds_of("/v1/chat/completions")
    assert kinds["stream_options.include_usage"] == "boolean"
    assert kinds["response_format.json_schema.schema"] == "mapping"


def test_drawn_grammars_follow_from_the_seed_and_refuse_what_is_none_of_them() -> None:
    def draw(seed: int) -> list[Any]:
        return [each.grammar for each in itertools.islice(drawn(random.Random(seed)), 40)]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)
    assert {each.kind for each in itertools.islice(drawn(random.Random(3)), 40)} == set(WEIGHTS)
    for each in itertools.islice(drawn(random.Random(3)), 40):
        assert not each.allows("{")


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ('{"on": "2024-02-29"}', True),
        ('{"on": "0000-02-29"}', True),  # a leap year of RFC 3339
        ('{"on": "2023-02-29"}', False),
        ('{"on": 5}', False),
        ('{"on": "2024-02-29"', False),
    ],
)
def test_dates_are_those_of_rfc_3339(text: str, is_valid: bool) -> None:
    schema = {"type": "object", "properties": {"on": {"type": "string", "format": "date"}}}
    assert is_of_schema(schema)(text) == is_valid


async def test_streams_that_do_not_go_on_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_kills, "_GO_ON_S", 0.0)
    load = Load("http://127.0.0.1:1/v1", 3)
    try:
        with pytest.raises(RuntimeError, match=r"^streams: 2 must go on within 0 s, got 0$"):
            await strike(load, 0, 1, 0.0, lambda: None)
    finally:
        load.close()


def test_the_example_gives_the_usage_once_though_a_break_follows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)

    def chunk(*choices: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(choices=choices, id="cmpl-a", created=1, system_fingerprint=None)

    events = [chunk(SimpleNamespace(index=0, seed=7)), chunk(SimpleNamespace(index=0, seed=7))]
    asked: list[dict[str, Any]] = []

    def broken_after(number: int, **request: Any) -> Iterator[SimpleNamespace]:
        after = int(request["extra_body"].get("resume", {}).get("starting_after", 0))
        asked.append(request)
        rest = [*events, chunk()][after:]
        yield from rest[:number]
        raise httpx.ReadError("broken")

    for number in (1, 2, 3):  # the last of them behind the usage
        asked.clear()
        chunks = itertools.islice(resuming(partial(broken_after, number), prompt="x"), 4)
        assert [len(each.choices) for each in chunks] == [1, 1, 0]
        assert len(asked) == {1: 3, 2: 2, 3: 1}[number]
