"""What the HTTP port refuses: each as a status with a body in OpenAI's shape, early."""

import asyncio
import errno
import json
import socket
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from router.http import connection
from router.http.call import TIMEOUT
from tests.fakes.fake_scheduler import MODEL, FakeScheduler
from tests.rpc.conftest import Keyed
from tests.rpc.http_setup import http_router
from tests.rpc.router_setup import PROMPT
from tests.scraping import Scrape, get

PATH = "/v1/completions"
JSON = {"content-type": "application/json"}
LENGTHY = b'{"prompt": "' + b"a" * 2**18 + b'"}'


def shown(response: Any) -> tuple[int, str]:
    """Return status and code, after a look at the shape."""
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert PROMPT not in error["message"]
    return response.status_code, error["code"]


async def test_each_wrong_request_is_refused_in_openais_shape(tmp_path) -> None:
    async with http_router(tmp_path, max_prompt_bytes=2**15) as setup:

        async def chunks():
            yield LENGTHY

        body = {"prompt": PROMPT}
        encoded, plain = {**JSON, "content-encoding": "gzip"}, {"content-type": "text/plain"}
        cases: list[tuple[str, str, dict[str, Any], int, str]] = [
            ("POST", PATH, {"content": b"{}"}, 415, "bad_http_request"),
            ("POST", PATH, {"content": b"{}", "headers": plain}, 415, "bad_http_request"),
            ("POST", PATH, {"content": b"{}", "headers": encoded}, 415, "bad_http_request"),
            ("POST", PATH, {"content": b"{", "headers": JSON}, 400, "invalid_request"),
            ("POST", PATH, {"content": b"[" * 10_000, "headers": JSON}, 400, "invalid_request"),
            ("POST", PATH, {"json": {}}, 400, "invalid_request"),
            ("POST", PATH, {"json": {"prompt": "a" * 2**16}}, 400, "invalid_request"),
            ("POST", PATH, {"json": {**body, "model": "other"}}, 404, "model_not_found"),
            ("POST", PATH, {"json": {"prompt": [999_999]}}, 400, "invalid_request"),
            ("POST", PATH, {"json": {**body, "priority": 10**30}}, 400, "invalid_request"),
            (
                "POST",
                PATH,
                {"json": body, "headers": {"x-request-id": "a b"}},
                400,
                "invalid_request",
            ),
            ("POST", PATH, {"json": body, "headers": {TIMEOUT: "nan"}}, 400, "invalid_request"),
            ("POST", PATH, {"content": LENGTHY, "headers": JSON}, 413, "bad_http_request"),
            ("POST", PATH, {"content": chunks(), "headers": JSON}, 413, "bad_http_request"),
            ("POST", "/tokenize", {"json": {}}, 400, "invalid_request"),
            ("POST", "/tokenize", {"json": {"prompt": 5}}, 400, "invalid_request"),
            (
                "POST",
                "/tokenize",
                {"json": {**body, "messages": [{"role": "user", "content": "a"}]}},
                400,
                "invalid_request",
            ),
            ("POST", "/detokenize", {"json": {}}, 400, "invalid_request"),
            ("POST", "/detokenize", {"json": {"tokens": ["a"]}}, 400, "invalid_request"),
            ("POST", "/detokenize", {"json": {"tokens": [-1]}}, 400, "invalid_request"),
            ("GET", "/nowhere", {}, 404, "bad_http_request"),
            ("POST", f"{PATH}/", {"json": body}, 404, "bad_http_request"),
            ("GET", PATH, {}, 405, "bad_http_request"),
        ]
        for method, path, request, status, code in cases:
            response = await setup.http.request(method, path, **request)
            assert shown(response) == (status, code), (method, path, response.text)
        answer = await setup.post(PATH, {"prompt": PROMPT, "max_tokens": 2})
        assert answer.status_code == 200, "and it goes on as ever"
        assert (await setup.http.get("/health")).json() == {"status": "ok"}
        [model] = (await setup.http.get("/v1/models")).json()["data"]
        assert model["id"] == "fake"
        assert (await setup.http.get("/v1/models/fake")).json() == model
        for path in ("", "a/b"):
            response = await setup.http.get(f"/v1/models/{path}")
            assert shown(response) == (404, "model_not_found")
            assert response.json()["error"]["param"] == "model"


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip"])
async def test_a_body_that_is_compressed_is_refused_by_that(tmp_path, coding: str) -> None:
    async with http_router(tmp_path) as setup:
        body = json.dumps({"prompt": PROMPT, "max_tokens": 3})
        headers = {**JSON, "content-encoding": coding}
        refused = await setup.http.request("POST", PATH, content=body, headers=headers)
        assert shown(refused) == (415, "bad_http_request")
        assert refused.json()["error"]["message"] == (
            f"content-encoding: must be absent or identity, got {coding!r}"
        )
        headers = {**JSON, "content-encoding": "Identity"}
        taken = await setup.http.request("POST", PATH, content=body, headers=headers)
        assert taken.status_code == 200


async def sent_raw(address: str, content: bytes) -> bytes:
    """Send bytes, and return all that comes until the connection is closed, or reset."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(content)
    answer = b""
    # Of a server that has not read all that was sent, a close is a reset.
    with suppress(ConnectionResetError):
        while part := await reader.read(2**16):
            answer += part
    writer.close()
    return answer


@pytest.mark.parametrize(
    "content",
    [
        b"no request\r\n\r\n",
        b"GET / HTTP/1.1\r\na: " + b"b" * 2**16,
        b"GET /health HTTP/1.1\r\nhost: a\r\na: " + b"b" * connection.MAX_HEAD_BYTES,
        b"\x16\x03\x01\x02",
        b"GET /health HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked",
    ],
    ids=["words", "a long head", "a head that is just too long", "TLS", "two lengths"],
)
async def test_what_is_no_request_is_answered_and_closed(tmp_path, content) -> None:
    async with http_router(tmp_path) as setup:
        answer = await sent_raw(setup.router.http_address, content + b"\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"]["code"] == "bad_http_request"


@pytest.mark.parametrize("hosts", [b"", b"host: a\r\nhost: b\r\n"], ids=["none", "two"])
async def test_a_request_without_its_host_is_told_so(tmp_path, hosts: bytes) -> None:
    async with http_router(tmp_path) as setup:
        content = b"GET /health HTTP/1.1\r\n" + hosts + b"\r\n"
        answer = await sent_raw(setup.router.http_address, content)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"]["message"].startswith("host: must be in the head")


async def test_who_is_slow_is_given_up(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_router(tmp_path, http_body_timeout_s=0.05) as setup:
        address = setup.router.http_address
        with monkeypatch.context() as patch:
            patch.setattr(connection, "HEAD_TIMEOUT_S", 0.05)
            for content in (b"", b"GET /health HTT"):
                assert await sent_raw(address, content) == b""
        head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        # Its answer comes, and the rest of the body is not waited for either.
        answer = await sent_raw(address, head + b"content-length: 99\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 408 ")


async def test_too_many_connections_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", 1)
    async with http_router(tmp_path) as setup:
        assert (await setup.http.get("/health")).status_code == 200  # and stays connected
        answer = await sent_raw(setup.router.http_address, b"")
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 1" in answer


async def test_keys_are_those_of_the_grpc_port(keyed: Keyed, tmp_path) -> None:
    async with http_router(tmp_path, api_keys=keyed.file) as setup:
        body = {"prompt": PROMPT, "max_tokens": 2}
        refused: list[dict[str, str]] = [
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Bearer old"},
            {"authorization": "Basic alice"},
            {"authorization": "Bearer alice", "x-api-key": "bob"},
        ]
        for headers in refused:
            response = await setup.post(PATH, body, **headers)
            assert shown(response) == (401, "invalid_api_key"), headers
            assert response.headers["www-authenticate"] == "Bearer"
            response = await setup.post("/v1/messages", body, **headers)
            assert response.json()["error"]["type"] == "authentication_error"
        for headers in ({"authorization": "bearer alice"}, {"x-api-key": "alice"}):
            assert (await setup.post(PATH, body, **headers)).status_code == 200
        response = await setup.post(PATH, {**body, "priority": -2}, **{"x-api-key": "dave"})
        assert shown(response) == (400, "invalid_request")
        assert (await setup.http.get("/health")).status_code == 200
        assert (await setup.http.get("/version")).status_code == 401
        tenants = [each.tenant for each in setup.fake.submitted]
        assert tenants == [("alice", 1.0)] * 2


@pytest.mark.parametrize("origins", [(), ("https://a.example",)])
async def test_pages_of_other_origins_read_only_what_they_may(tmp_path, origins) -> None:
    async with http_router(tmp_path, http_cors_origin=origins) as setup:
        for origin in ("https://a.example", "https://b.example"):
            response = await setup.http.get("/health", headers={"origin": origin})
            allowed = response.headers.get("access-control-allow-origin")
            assert allowed == (origin if origin in origins else None)


async def test_requests_are_counted_by_path_and_status(tmp_path) -> None:
    async with http_router(tmp_path) as setup:
        admin = await setup.router.start_admin(0)
        for path in ("/health", "/nowhere", "/nowhere/else"):
            await setup.http.get(path)
        await setup.post(PATH, {"prompt": PROMPT, "max_tokens": 2})
        await setup.post(PATH, {"prompt": 5})
        status, page = await asyncio.to_thread(get, admin, "/metrics")
        assert status == 200
        metrics = Scrape(page)
        counted = {
            (route, code): metrics("quire_router_http_requests_total", route=route, status=code)
            for route, code in (("/health", "200"), ("other", "404"), (PATH, "200"), (PATH, "400"))
        }
        assert list(counted.values()) == [1, 2, 1, 1]
        assert metrics("quire_router_http_open_requests") == 0
        assert metrics("quire_router_http_connections") == 1
        assert metrics("quire_router_requests_total", model="", outcome="refused") == 1


async def test_a_stream_that_nobody_reads_is_broken_off(tmp_path) -> None:
    fake = FakeScheduler(model=replace(MODEL, max_model_len=2**20))
    async with http_router(tmp_path, fake, stalled_reader_timeout_s=0.2) as setup:
        host, _, port = setup.router.http_address.rpartition(":")
        with socket.create_connection((host, int(port))) as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            body = {"prompt": PROMPT, "max_tokens": 2**19, "ignore_eos": True, "stream": True}
            content = json.dumps(body).encode()
            head = f"POST {PATH} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            reader.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
            # It is paused long before; then its connection is gone, and with it the request.
            await setup.fake.until(lambda: len(fake.cancelled) == 1)
            admin = await setup.router.start_admin(0)
            page, num_open = "", 1.0
            while num_open or 'reason="READER_STALLED"} 1' not in page:
                _, page = await asyncio.to_thread(get, admin, "/metrics")
                num_open = Scrape(page)("quire_router_http_open_requests")


async def test_a_draining_router_finishes_streams_and_takes_no_more(tmp_path) -> None:
    async with http_router(tmp_path) as setup:
        setup.fake.hold()
        body = {"prompt": PROMPT, "max_tokens": 3}
        streaming = asyncio.create_task(setup.events(PATH, body))
        await setup.fake.until(lambda: setup.fake.num_running() == 1)
        draining = asyncio.create_task(setup.router.drain())
        with pytest.raises(httpx.HTTPError):
            while True:
                await setup.http.get("/health")
        await setup.fake.release()
        assert (await streaming)[-1].data == "[DONE]"
        await draining


async def test_without_a_process_for_its_template_a_chat_is_to_come_again(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    statuses = {"/v1/chat/completions": 429, "/v1/messages": 529}
    async with http_router(tmp_path, chat_template="{{ messages[0].content }}") as setup:
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr("asyncio.create_subprocess_exec", fail)
            for path, status in statuses.items():
                response = await setup.post(path, body)
                assert (response.status_code, response.headers["retry-after"]) == (status, "1")
                message = "no process can be started for the chat template now"
                assert response.json()["error"]["message"] == message
        [line] = [each for each in lines if each["log_level"] in ("warning", "error")]
        assert line["event"] == "sandbox_not_started"
        for path in statuses:
            assert (await setup.post(path, body)).status_code == 200


async def test_a_process_for_its_template_that_is_never_started_is_no_overload(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    async with http_router(tmp_path, chat_template="{{ messages[0].content }}") as setup:
        monkeypatch.setattr("asyncio.create_subprocess_exec", fail)
        response = await setup.post("/v1/chat/completions", body)
        message = "no process can be started for the chat template"
        assert (response.status_code, response.json()["error"]["message"]) == (503, message)
        assert "retry-after" not in response.headers


async def test_what_each_choice_shows_of_a_prompt_is_bounded_by_all_of_them(tmp_path) -> None:
    fake = FakeScheduler(model=replace(MODEL, max_model_len=2**20))
    async with http_router(tmp_path, fake) as setup:
        body = {"prompt": [5] * 1000, "n": 64, "max_tokens": 1, "prompt_logprobs": 20}
        response = await setup.post(PATH, body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt_logprobs")
        body |= {"n": 1}
        assert (await setup.post(PATH, body)).status_code == 200


async def test_what_a_router_that_stops_has_not_answered_may_be_asked_again(tmp_path) -> None:
    fake = FakeScheduler()
    fake.hold()
    async with http_router(tmp_path, fake) as setup:
        asking = asyncio.create_task(setup.post(PATH, {"prompt": PROMPT, "max_tokens": 2}))
        await fake.until(lambda: bool(fake.submitted))
        await setup.router._http.server.stop(0.1)
        assert shown(await asking) == (503, "unavailable")
