"""Streams of events over HTTP.

By aiohttp, since what a client does for each event is time in which it reads no other: at 64
streams an event took 47 us of processor time with aiohttp 3.14, whose parser is in C, 120 us with
httpx 0.28 and 105 us with httpx2 2.16, from the same server in the same minutes on a Zen 4.
"""

import json
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp

from launch.bench.clients.base import RequestFailedError

# A request may wait long in the server's queue without a word.
TOTAL_TIMEOUT_S = 6 * 3600
CONNECT_TIMEOUT_S = 60
# Less than uvicorn's 5 s: a connection that the server closes as it is used again fails a request.
KEEPALIVE_S = 4
MOST_OF_AN_ERROR = 4096
MOST_OF_A_LINE = 2**24

TakeEvent = Callable[[float, dict[str, Any]], None]


class HttpClient:
    """Connections to one server; made and used in one event loop.

    Args:
        base_url: of the server, without a path.
        headers: of each request.
        tls: for https; False checks no certificate, True those of the system.
        server_name: that the certificate must have; None for the host's.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | bool = True,
        server_name: str | None = None,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._server_name = server_name
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ssl=tls),
            timeout=aiohttp.ClientTimeout(total=TOTAL_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
            headers={"content-type": "application/json", **headers},
            auto_decompress=False,
            trust_env=True,
        )

    async def get(self, path: str) -> Any:
        """Return the JSON at a path.

        Raises:
            RequestFailedError: there is none, or the server cannot be reached.
        """
        try:
            async with self._session.get(
                self._base_url + path, server_hostname=self._server_name
            ) as response:
                if response.status != 200:
                    fault = await _fault(response)
                    raise RequestFailedError(f"GET {self._base_url}{path}: {fault}")
                return await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError) as error:
            raise RequestFailedError(f"GET {self._base_url}{path}: {_describe(error)}") from None

    async def stream(self, path: str, body: bytes, take: TakeEvent) -> bool:
        """Post a body and hand over each event of the answer, with the time at which it was read.

        Returns:
            Whether the server has sent `[DONE]`.

        Raises:
            RequestFailedError: the answer is no stream of JSON events, or breaks off.
        """
        try:
            async with self._session.post(
                self._base_url + path, data=body, server_hostname=self._server_name
            ) as response:
                if response.status != 200:
                    raise RequestFailedError(await _fault(response))
                if response.content_type != "text/event-stream":
                    raise RequestFailedError(
                        f"content-type: must be text/event-stream, got {response.content_type}"
                    )
                return await _read_events(response.content, take)
        except (aiohttp.ClientError, TimeoutError, OSError, RecursionError) as error:
            raise RequestFailedError(_describe(error)) from None

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


async def _read_events(content: aiohttp.StreamReader, take: TakeEvent) -> bool:
    """Read lines of `data:`, each of which is an event of its own in every API measured here."""
    rest = b""
    is_done = False
    at = 0.0
    async for piece in content.iter_any():
        at = time.perf_counter()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            is_done |= _take_line(at, line, take)
        if len(rest) > MOST_OF_A_LINE:
            raise RequestFailedError(
                f"event: must be at most {MOST_OF_A_LINE} bytes long, got {len(rest)} and no end"
            )
    return _take_line(at, rest, take) or is_done


def _take_line(at: float, line: bytes, take: TakeEvent) -> bool:
    """Hand over the event of a line, if it is one; return whether it was the last of the stream."""
    if not line.startswith(b"data:"):
        return False
    payload = line[5:].strip()
    if payload == b"[DONE]":
        return True
    try:
        event = json.loads(payload)
    except (ValueError, RecursionError):
        raise RequestFailedError(f"event: must be JSON, got {payload[:200]!r}") from None
    if not isinstance(event, dict):
        raise RequestFailedError(f"event: must be an object, got {payload[:200]!r}")
    take(at, event)
    return False


async def _fault(response: aiohttp.ClientResponse) -> str:
    """Return the reason of a refusal, in one line."""
    text = (await response.content.read(MOST_OF_AN_ERROR)).decode(errors="replace")
    with suppress(ValueError, RecursionError):
        text = message_of(json.loads(text)) or text
    return f"HTTP {response.status}: {' '.join(text.split()) or response.reason}"


def message_of(body: Any) -> str | None:
    """Return the message of an error in OpenAI's or vLLM's shape, None of what is no error."""
    if not isinstance(body, dict):
        return None
    error = body if body.get("object") == "error" else body.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error) if error else None


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
