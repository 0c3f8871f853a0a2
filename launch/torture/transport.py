"""HTTP to the server: JSON, and streams of events."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp

from launch.torture.answers import error_text
from launch.torture.errors import AskError, BrokenError, RefusedError, UnreadableError
from launch.torture.events import Event, EventReader

_MAX_BODY_BYTES = 2**22
_CONNECT_TIMEOUT_S = 5.0


class Transport:
    """Connections to a server. Use it in `async with`. What takes too long, callers end.

    Args:
        base_url: with the `/v1`.
        api_key: sent as a bearer token; None for none.
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        self._base_url = base_url
        self._headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}

    async def get(self, path: str) -> Any:
        """Return the JSON at a path.

        Raises:
            AskError: there is none.
        """
        async with self._call("GET", path) as response:
            return _json(await _body(response))

    @asynccontextmanager
    async def events(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """Post, and give the events of the answer; leaving the context disconnects.

        Raises:
            AskError: the call fails, or the stream does.
        """
        async with self._call("POST", path, json=body, headers=headers) as response:
            if response.content_type != "text/event-stream":
                raise UnreadableError(
                    f"content-type: must be text/event-stream, got {response.content_type!r}"
                )
            yield _read(response)

    @asynccontextmanager
    async def _call(
        self, method: str, path: str, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        with _explained():
            response = await self._http.request(method, f"{self._base_url}/{path}", **options)
            try:
                if response.status != 200:
                    raise _refusal(response, await _body(response))
                yield response
            finally:
                response.close()

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            headers=self._headers,
            # How many streams there are at once, scenarios decide. A connection that was kept may
            # be one to a process that has been killed since.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(sock_connect=_CONNECT_TIMEOUT_S),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.close()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError) as error:
        raise BrokenError(f"{type(error).__name__}: {error}".rstrip(": ")) from None


async def _read(response: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    reader = EventReader()
    async for received in response.content.iter_any():
        for event in reader.feed(received):
            yield event


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = b""
    async for received in response.content.iter_any():
        body += received
        if len(body) > _MAX_BODY_BYTES:
            raise UnreadableError(f"body: must have at most {_MAX_BODY_BYTES} bytes")
    return body


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise UnreadableError(f"body: must be JSON, got {body[:80]!r}") from None


def _refusal(response: aiohttp.ClientResponse, body: bytes) -> RefusedError:
    try:
        message = error_text(_json(body))
    except AskError:
        message = repr(body[:80])
    try:
        retry_after_s = float(response.headers["retry-after"])
    except (KeyError, ValueError):  # or it is a date
        return RefusedError(response.status, message)
    return RefusedError(response.status, message, retry_after_s)
