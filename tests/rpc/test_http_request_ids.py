"""Every error over HTTP has the id of its request: the client's, or one that was drawn."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.rpc.http_setup import bodies, http_router
from tests.rpc.router_setup import PROMPT
from tests.rpc.test_http_limits import sent_raw

BODIES = bodies(PROMPT, 3)
COUNT = "/v1/messages/count_tokens"
PATHS = (*BODIES, COUNT, "/v1/embeddings", "/tokenize", "/v1/responses/input_tokens")
KEY, MINE = {"x-api-key": "one"}, {"x-request-id": "mine"}
JSON = {**KEY, "content-type": "application/json"}
WRONG: dict[str, tuple[int, dict[str, str], dict[str, Any]]] = {
    "a wrong key": (401, {"x-api-key": "two"}, {"json": {}}),
    "no key": (401, {}, {"json": {}}),
    "another type of content": (415, KEY, {"content": b"{}"}),
    "a body that is too long": (413, JSON, {"content": b'{"a": "' + b"a" * 2**18 + b'"}'}),
    "a body that breaks off": (400, JSON, {"content": b"{"}),
    "no object": (400, KEY, {"json": []}),
    "a field of a wrong type": (400, KEY, {"json": {"model": 5}}),
    "another deadline": (400, {**KEY, "x-request-timeout-s": "nan"}, {"json": {}}),
}


def id_of(response: httpx.Response, path: str) -> str:
    """The id of an answer's request, after a look at each place where clients look for it."""
    found = response.headers["x-request-id"]
    assert found
    if path.startswith("/v1/messages"):
        assert response.headers["request-id"] == found
        assert response.json()["request_id"] == found
    return found


@pytest.mark.parametrize("case", WRONG)
async def test_what_is_wrong_has_an_id(tmp_path: Path, case: str) -> None:
    status, headers, content = WRONG[case]
    async with http_router(tmp_path, api_key=("one",), max_prompt_bytes=2**15) as setup:
        for path in PATHS:
            drawn = set()
            for _ in range(2):
                response = await setup.http.post(path, headers=headers, **content)
                assert response.status_code == status, (path, response.text)
                drawn.add(id_of(response, path))
            assert len(drawn) == 2, path
            response = await setup.http.post(path, headers={**headers, **MINE}, **content)
            assert (response.status_code, id_of(response, path)) == (status, "mine"), path


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/v1/messages/none", 404),
        ("GET", "/v1/completions", 405),
        ("GET", COUNT, 405),
        ("GET", "/v1/models/none", 404),
        ("GET", "/v1/responses/resp_none", 404),
        ("POST", "/v1/responses/resp_none/cancel", 404),
    ],
)
async def test_what_is_not_there_has_an_id(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    async with http_router(tmp_path) as setup:
        drawn = await setup.http.request(method, path)
        own = await setup.http.request(method, path, headers=MINE)
    assert drawn.status_code == own.status_code == status
    assert id_of(drawn, path) != id_of(own, path) == "mine"


@pytest.mark.parametrize("path", BODIES)
async def test_an_id_that_the_body_brings_is_that_of_its_error(tmp_path: Path, path: str) -> None:
    async with http_router(tmp_path) as setup:
        body = {**BODIES[path], "request_id": "mine", "temperature": -1}
        response = await setup.post(path, body)
        assert (response.status_code, id_of(response, path)) == (400, "mine")
        # That of the header goes first.
        response = await setup.post(path, body, **{"x-request-id": "first"})
        assert (response.status_code, id_of(response, path)) == (400, "first")


@pytest.mark.parametrize("path", BODIES)
async def test_an_id_that_is_malformed_is_not_repeated(tmp_path: Path, path: str) -> None:
    async with http_router(tmp_path) as setup:
        for malformed in ("a b", "a" * 129):
            response = await setup.post(path, BODIES[path], **{"x-request-id": malformed})
            assert response.status_code == 400
            assert response.json()["error"]["message"].startswith("x-request-id: must be ")
            assert malformed not in id_of(response, path)
            nowhere = await setup.post("/nowhere", {}, **{"x-request-id": malformed})
            assert malformed not in id_of(nowhere, "/nowhere")


async def test_what_is_no_request_has_an_id(tmp_path: Path) -> None:
    async with http_router(tmp_path) as setup:
        answer = await sent_raw(setup.router.http_address, b"GET /ping\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert re.search(rb"\r\nx-request-id: [0-9a-f]{32}\r\n", answer), answer
