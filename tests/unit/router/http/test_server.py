"""Clients that do not read: neither the end of a server nor a connection waits for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from starlette.types import Receive, Scope, Send

from router.http.connection import Connection
from router.http.server import HttpServer

CHUNK = bytes(2**20)
LIMIT_S = 60  # of a test that would wait for ever


class Endless:
    """An application that writes until its client is gone.

    Attributes:
        ended: a client is.
    """

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.connection: Connection | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.connection = scope["state"]["connection"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not self.connection.transport.is_closing():
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            await asyncio.sleep(0)
        self.ended.set()

    async def until_unread(self) -> None:
        """Return when no more can be written."""
        while self.connection is None or not self.connection.flow.write_paused:
            await asyncio.sleep(0)


@asynccontextmanager
async def unread(server: HttpServer) -> AsyncIterator[asyncio.StreamReader]:
    """A client that has asked, and reads nothing unless a test does."""
    host, _, port = (await server.start("127.0.0.1", 0)).partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    yield reader
    writer.close()


async def test_a_server_stops_though_nobody_reads_its_answer() -> None:
    app = Endless()
    server = HttpServer(app)
    async with asyncio.timeout(LIMIT_S), unread(server):
        await app.until_unread()
        await server.stop(grace_s=0.01)
        assert (server.num_requests, server.num_connections) == (0, 0)


async def test_who_takes_nothing_of_an_answer_is_taken_for_gone() -> None:
    app = Endless()
    server = HttpServer(app, write_timeout_s=0.05)
    async with asyncio.timeout(LIMIT_S), unread(server) as reader:
        await app.ended.wait()
        last = b""
        with suppress(ConnectionError):
            while some := await reader.read(2**20):
                last = some
        assert not last.endswith(b"0\r\n\r\n")  # with which a whole answer ends
        assert server.num_connections == 0
        await server.stop()


async def test_who_reads_slowly_reads_to_the_end() -> None:
    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", str(16 * len(CHUNK)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": 16 * CHUNK})

    loop = asyncio.get_running_loop()
    server = HttpServer(large, write_timeout_s=1.0)
    async with asyncio.timeout(LIMIT_S), unread(server) as reader:
        await reader.readuntil(b"\r\n\r\n")
        left, end_s = 16 * len(CHUNK), loop.time() + 1.5
        while left:
            left -= len(await reader.readexactly(min(left, 2**18)))
            if loop.time() < end_s:  # so that the server looks at it meanwhile
                await asyncio.sleep(0.1)
        await server.stop()
