"""Bodies that are no JSON object, or would cost too much to be one."""

import json

import pytest
from starlette.datastructures import Headers

from quire.contract.errors import InvalidRequestError, OverloadedError
from router.http.bodies import MAX_COMMAS, MAX_CONTAINERS, MAX_DEPTH, Bodies, parse_object


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "must be JSON, got an error in line 1, column 1"),
        (b"{", "must be JSON, got an error in line 1"),
        (b"[1]", "must be a JSON object, got an array"),
        (b"null", "must be a JSON object, got null"),
        (b'{"a": NaN}', "got a number that is none"),
        (b'{"a": -Infinity}', "got a number that is none"),
        (b'{"a": [1e400]}', "must be JSON, got a number that is none"),
        (b'{"a": ' + b"9" * 400 + b".0}", "got a number that is none"),
        (b'{"a": -1E999}', "got a number that is none"),
        (b'{"a": ' + b"9" * 5000 + b"}", "got a number that is none"),
        (b'{"a": "\xff"}', "must be UTF-8"),
        ('{"a": "b"}'.encode("utf-16"), "must be UTF-8"),
        (rb'{"a": "\ud800"}', "must hold no surrogate"),
        (rb'{"\udc00": 1}', "must hold no surrogate"),
        (rb'{"a": [["\ud83d\ud83d"]]}', "must hold no surrogate"),
        (b'{"a":' * (MAX_DEPTH + 1), f"must be at most {MAX_DEPTH} levels deep"),
        (b"[" * 2**20, f"must be at most {MAX_DEPTH} levels deep"),
        (b"]" * 2**20, "must be JSON"),
        (b'{"a": [' + b"[]," * MAX_CONTAINERS, f"must hold at most {MAX_CONTAINERS} arrays"),
        (b'{"a": [' + b"1," * (MAX_COMMAS + 1), f"must hold at most {MAX_COMMAS} values"),
        # No quote of these may be scanned more than once.
        (b'"' + rb"\"" * 2**20, "must be JSON"),
        (b'"' + b"\\" * (2**20 + 1), "must be JSON"),
    ],
)
def test_a_body_is_refused_before_it_costs_much(body, message) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refused:
        parse_object(body)
    assert refused.value.field == "body"


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"a": "[[[{{{" * 100, '"]': "\\", "b": ["😀", "\n", '"', "}"]},
        json.loads('{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH),
        {"a": [[]] * (MAX_CONTAINERS - 2)},
    ],
)
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_what_strings_hold_is_no_structure(value, ensure_ascii) -> None:
    assert parse_object(json.dumps(value, ensure_ascii=ensure_ascii).encode()) == value


async def test_a_body_counts_until_it_is_forgotten() -> None:
    body = json.dumps({"a": "b" * 100}).encode()

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body}

    headers = Headers({"content-type": "application/json"})
    bodies = Bodies(1000, 60.0, max_held_bytes=2 * len(body))
    (first, release), _ = [await bodies.read_object(headers, receive) for _ in range(2)]
    assert first == json.loads(body)
    for _ in range(2):  # what is refused counts no more
        with pytest.raises(OverloadedError):
            await bodies.read_object(headers, receive)
    release()
    release()
    await bodies.read_object(headers, receive)
    with pytest.raises(OverloadedError):
        await bodies.read_object(headers, receive)
