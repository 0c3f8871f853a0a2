"""The admin port's HTTP: what it answers, and what it bears."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from prometheus_client.registry import CollectorRegistry

from quire.contract.errors import UnavailableError
from quire.observe import admin
from quire.observe.admin import AdminServer, Page, verdict
from quire.observe.metrics.pages import ServiceAdmin

ANYWHERE = 0


@asynccontextmanager
async def serving(**pages: Callable[[], Page]) -> AsyncIterator[int]:
    """A server of these pages; yields its port."""
    server = AdminServer({f"/{name}": make for name, make in pages.items()})
    address = await server.start(ANYWHERE)
    try:
        yield int(address.rpartition(":")[2])
    finally:
        await server.stop()


async def exchange(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to the bytes of a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *headers = head.decode().split("\r\n")
    return int(status.split(" ")[1]), dict(line.split(": ", 1) for line in headers), body


def ask(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def test_a_page_is_given_to_get_and_its_head_to_head() -> None:
    async with serving(page=lambda: Page("näme\n")) as port:
        status, headers, body = await exchange(port, ask("/page?query=ignored"))
        assert (status, body.decode()) == (200, "näme\n")
        assert headers["Content-Length"] == str(len(body))
        assert headers["Connection"] == "close"
        head_status, head_headers, no_body = await exchange(port, ask("/page", "HEAD"))
        assert (head_status, head_headers, no_body) == (status, headers, b"")


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (ask("/nothing"), 404),
        (ask("/"), 404),
        (ask("/page", "POST"), 405),
        (ask("/page", "DELETE"), 405),
        (b"hello\r\n\r\n", 400),
        (b"GET /page HTTP/2.0\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\xff\xfe\xfd\r\n\r\n", 400),
        (b"GET /page HTTP/1.1\r\nX: " + b"a" * 2 * admin.MAX_HEAD_BYTES + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 2 * admin.MAX_HEAD_BYTES, 431),
    ],
)
async def test_what_is_no_request_for_a_page_is_refused_and_harms_no_other(
    request_bytes: bytes, expected: int
) -> None:
    async with serving(page=lambda: Page("ok\n")) as port:
        status, headers, _ = await exchange(port, request_bytes)
        assert status == expected
        assert ("Allow" in headers) == (status == 405)
        assert (await exchange(port, ask("/page")))[0] == 200


async def test_silent_connections_are_closed_and_the_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin, "TIMEOUT_S", 0.2)
    async with serving(page=lambda: Page("ok\n")) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert (await exchange(port, ask("/page")))[0] == 200
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()


async def test_only_so_many_are_served_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "MAX_CONNECTIONS", 2)
    async with serving(page=lambda: Page("ok\n")) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in held:
            writer.write(b"GET ")  # and no more
            await writer.drain()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
        for reader, writer in held:
            writer.write(b"/page HTTP/1.1\r\n\r\n")
            assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 200")
            writer.close()
        assert (await exchange(port, ask("/page")))[0] == 200


async def test_connections_that_do_not_read_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "TIMEOUT_S", 0.2)
    page = "a" * 2**25  # more than the kernel holds for either end
    server = AdminServer({"/page": lambda: Page(page)})
    port = int((await server.start(ANYWHERE)).rpartition(":")[2])
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(ask("/page"))
        received = len(await reader.read(1024))
        async with asyncio.timeout(20):
            while server._num_connections:
                await asyncio.sleep(0.01)
            with suppress(ConnectionError):
                while data := await reader.read(2**20):
                    received += len(data)
        assert received < len(page), "what it had not read by then is not kept for it"
        writer.close()
    finally:
        await server.stop()


async def test_a_page_that_fails_does_not_show_why() -> None:
    def fail() -> Page:
        raise RuntimeError("secret")

    async with serving(page=fail) as port:
        status, _, body = await exchange(port, ask("/page"))
        assert status == 500
        assert b"secret" not in body


async def test_a_port_in_use_is_reported_in_one_line() -> None:
    async with serving() as port:
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}: is it in use"):
            await AdminServer({}).start(port)


def test_a_verdict_is_503_with_its_reason() -> None:
    assert verdict("").status == 200
    assert (verdict("no step").status, verdict("no step").body) == (503, "no step\n")


async def test_probes_report_the_state_of_the_service() -> None:
    ready, stuck, why = [True], [""], [""]
    service = ServiceAdmin(
        "router",
        CollectorRegistry(),
        None,
        is_ready=lambda: ready[0],
        why_stuck=lambda: stuck[0],
        certificate_expiry=lambda: 1e9,
        why_not_ready=lambda: why[0],
    )
    port = int((await service.start(ANYWHERE)).rpartition(":")[2])
    try:
        for path in ("/livez", "/readyz"):
            assert (await exchange(port, ask(path)))[::2] == (200, b"ok\n")
        ready[0], stuck[0] = False, "no step for 301 s"
        assert (await exchange(port, ask("/readyz")))[::2] == (503, b"not serving\n")
        why[0] = "a reason"
        assert (await exchange(port, ask("/readyz")))[::2] == (503, b"not serving: a reason\n")
        assert (await exchange(port, ask("/livez")))[::2] == (503, b"no step for 301 s\n")
        _, headers, metrics = await exchange(port, ask("/metrics"))
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert b"quire_ready 0.0" in metrics
        assert b"quire_certificate_expiry_timestamp_seconds 1e+09" in metrics
    finally:
        await service.stop()
