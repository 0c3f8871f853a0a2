"""Calls of an HTTP API: many at once, with patience for a server that is full or starts again."""

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import h11

from quire.contract.errors import UnavailableError

T = TypeVar("T")

_READ_BYTES = 65_536
# What says that the same request may be answered later.
_AGAIN = frozenset({429, 502, 503, 529})
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0
# How long a server may be away: a model is loaded again by then.
AWAY_TIMEOUT_S = 600.0

Answer = tuple[int, str, Any]
"""Status, request id, and what the JSON is."""


class HttpClient:
    """Sends JSON to a server and reads JSON back, over a connection for each call.

    Args:
        base: "http://HOST:PORT", or "unix:PATH".
        api_key: to call with; "" for none.
    """

    def __init__(self, base: str, api_key: str = "") -> None:
        self._socket = base.removeprefix("unix:") if base.startswith("unix:") else ""
        parts = urlsplit(base)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._headers = {
            "host": parts.netloc or "localhost",
            "content-type": "application/json",
            "connection": "close",
        }
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    async def post(self, url: str, body: bytes, request_id: str) -> tuple[Answer, float]:
        """Send a body; return the answer, and after how many seconds to try again if it says so.

        Raises:
            OSError: nobody listens there, or the connection broke before the answer was whole.
        """
        if self._socket:
            reader, writer = await asyncio.open_unix_connection(self._socket)
        else:
            reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            state = h11.Connection(h11.CLIENT)
            length = {"content-length": str(len(body)), "x-request-id": request_id}
            headers = list((self._headers | length).items())
            for event in (
                h11.Request(method="POST", target=url, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                writer.write(state.send(event) or b"")
            await writer.drain()
            return await _read(state, reader, request_id)
        except h11.RemoteProtocolError as error:
            raise ConnectionError(str(error)) from error
        finally:
            writer.close()


async def _read(
    state: h11.Connection, reader: asyncio.StreamReader, request_id: str
) -> tuple[Answer, float]:
    status, wait_s, content = 0, 0.0, bytearray()
    while True:
        event = state.next_event()
        if event is h11.NEED_DATA:
            state.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = {name: value.decode("latin-1") for name, value in event.headers}
            request_id = headers.get(b"x-request-id", request_id)
            wait_s = float(headers.get(b"retry-after", 0))
        elif isinstance(event, h11.Data):
            content += event.data
        elif isinstance(event, h11.EndOfMessage):
            return (status, request_id, json.loads(content or b"null")), wait_s
        elif isinstance(event, h11.ConnectionClosed):
            raise ConnectionResetError("the server closed the connection")


async def call_all(
    client: HttpClient,
    requests: Iterable[tuple[T, str, bytes, str]],
    num_at_once: int,
    answered: Callable[[T, Answer], None],
) -> None:
    """Send requests, so many at a time.

    Args:
        client: of the server.
        requests: of each, what it is known by, url, body and request id.
        num_at_once: requests on their way.
        answered: called with what a request is known by, and its answer.

    Raises:
        UnavailableError: the server is away for too long.
    """
    left = iter(requests)

    async def work() -> None:
        for key, url, body, request_id in left:
            answered(key, await _answer(client, url, body, request_id))

    tasks = [asyncio.create_task(work()) for _ in range(num_at_once)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(client: HttpClient, url: str, body: bytes, request_id: str) -> Answer:
    delay_s, away_since = FIRST_WAIT_S, None
    while True:
        wait_s = 0.0
        try:
            answer, wait_s = await client.post(url, body, request_id)
            away_since = None
            if answer[0] not in _AGAIN:
                return answer
        except OSError as error:
            away_since = away_since or time.monotonic()
            if time.monotonic() - away_since > AWAY_TIMEOUT_S:
                why = error.strerror or str(error)
                raise UnavailableError(f"the server is away: {why}") from error
        await asyncio.sleep(max(delay_s, wait_s))
        delay_s = min(LONGEST_WAIT_S, 2 * delay_s)
