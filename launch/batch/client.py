"""Calls of an HTTP API: many at once, with patience for a server that is full or starts again."""

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import h11

from quire.contract.errors import ConfigError, UnavailableError

T = TypeVar("T")

_READ_BYTES = 65_536
_PORTS = {"http": 80, "https": 443}
_WRONG_URL = "url: must be http://HOST:PORT or https://HOST:PORT, got {}"
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
        base: "http://HOST:PORT" or "https://HOST:PORT", which may end with "/v1" as OpenAI's
            clients are given it, or "unix:PATH".
        api_key: to call with; "" for none.

    Raises:
        ConfigError: `base` is another.
    """

    def __init__(self, base: str, api_key: str = "") -> None:
        self._base = base
        self._socket = base.removeprefix("unix:") if base.startswith("unix:") else ""
        try:
            parts = urlsplit("http://localhost" if self._socket else base)
            self._host, port = parts.hostname or "", parts.port
        except ValueError:
            raise ConfigError(_WRONG_URL.format(base)) from None
        is_base = parts.path.rstrip("/") in ("", "/v1") and not parts.query
        if parts.scheme not in _PORTS or not self._host or not is_base:
            raise ConfigError(_WRONG_URL.format(base))
        self._port = port or _PORTS[parts.scheme]
        # Its authorities are those of SSL_CERT_FILE, if that names any.
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {
            "host": parts.netloc.rpartition("@")[2],
            "content-type": "application/json",
            "connection": "close",
        }
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    async def check(self) -> None:
        """Ask once which models there are.

        Raises:
            UnavailableError: nobody listens there, or it speaks another protocol.
            ConfigError: the server does not know the key, or is another kind of server.
        """
        try:
            (status, _, body), _ = await self._call("GET", "/v1/models", b"", "")
        except OSError as error:
            why = error.strerror or str(error)
            raise UnavailableError(
                f"url: must be where a server listens, got {self._base}: {why}"
            ) from None
        if status in (401, 403):
            raise ConfigError(f"api_key: must be a key of {self._base}, which answers {body}")

    async def post(self, url: str, body: bytes, request_id: str) -> tuple[Answer, float]:
        """Send a body; return the answer, and after how many seconds to try again if it says so.

        Raises:
            OSError: nobody listens there, or the connection broke before the answer was whole.
            ConfigError: the answer is none of an API like OpenAI's.
        """
        return await self._call("POST", url, body, request_id)

    async def _call(
        self, method: str, url: str, body: bytes, request_id: str
    ) -> tuple[Answer, float]:
        if self._socket:
            reader, writer = await asyncio.open_unix_connection(self._socket)
        else:
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        try:
            state = h11.Connection(h11.CLIENT)
            length = {"content-length": str(len(body)), "x-request-id": request_id}
            headers = list((self._headers | length).items())
            for event in (
                h11.Request(method=method, target=url, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                writer.write(state.send(event) or b"")
            await writer.drain()
            return await _read(state, reader, request_id)
        except h11.RemoteProtocolError as error:
            raise ConnectionError(str(error)) from error
        except ValueError:
            raise ConfigError(
                f"url: must be a server of OpenAI's API, got {self._base}, whose answer to {url} "
                "is no JSON"
            ) from None
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
            with suppress(ValueError):  # a date, as proxies send it
                wait_s = float(headers.get(b"retry-after", 0))
        elif isinstance(event, h11.Data):
            content += event.data
        elif isinstance(event, h11.EndOfMessage):
            if status in _AGAIN:  # by a proxy in its own words, maybe
                return (status, request_id, None), wait_s
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
