"""Bodies of requests: read and parsed within limits that hold before anything is allocated."""

import asyncio
import json
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive

from quire import finite_json
from quire.contract.errors import InvalidRequestError, OverloadedError
from router.http.errors import ClientGoneError, HttpError

MAX_DEPTH = 64
# Arrays and objects in one body: each costs far more as an object than as text.
MAX_CONTAINERS = 65_536
# Members of arrays and objects, of which each but the first follows a comma.
MAX_COMMAS = 2**18
# Of all bodies that are being read, or whose objects are kept.
MAX_HELD_BYTES = 2**27
RETRY_AFTER_MS = 1000

# A string, or one that lacks its end; it always matches at a quote, so that a scan is linear.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Bodies:
    """Reads the bodies of requests.

    Args:
        max_bytes: of one.
        timeout_s: for one to come.
        max_held_bytes: of all that are being read, or are not forgotten yet.
    """

    def __init__(
        self, max_bytes: int, timeout_s: float, max_held_bytes: int = MAX_HELD_BYTES
    ) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._max_held_bytes = max_held_bytes
        self._num_held = 0

    async def read_object(
        self, headers: Headers, receive: Receive
    ) -> tuple[dict[str, Any], Callable[[], None]]:
        """Return the JSON object that a request brings, and what is to be called once it is gone.

        Raises:
            HttpError: it is of another media type, too long, or does not come in time.
            InvalidRequestError: it is no JSON object within the limits.
            OverloadedError: too many others are being read.
            ClientGoneError: it breaks off.
        """
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            # Also so that no page of a browser may send one without being asked (CORS).
            raise HttpError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                f"content-type: must be application/json, got {media_type[:64] or 'none'!r}",
            )
        for coding in headers.getlist("content-encoding"):
            if coding.strip().lower() not in ("", "identity"):
                raise HttpError(
                    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                    f"content-encoding: must be absent or identity, got {coding.strip()[:64]!r}",
                )
        length = headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length[:16]) > self._max_bytes:
            raise self._too_long()
        body = await self._read(receive)
        num_bytes = len(body)

        def release() -> None:
            nonlocal num_bytes
            self._num_held -= num_bytes
            num_bytes = 0

        try:
            return parse_object(body), release
        except BaseException:
            release()
            raise

    def _too_long(self) -> HttpError:
        return HttpError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"body: must be at most {self._max_bytes} bytes"
        )

    async def _read(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        num_bytes = 0
        try:
            async with asyncio.timeout(self._timeout_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    part: bytes = message.get("body", b"")
                    more = message.get("more_body", False)
                    num_bytes += len(part)
                    self._num_held += len(part)
                    parts.append(part)
                    if num_bytes > self._max_bytes:
                        raise self._too_long()
                    if self._num_held > self._max_held_bytes:
                        raise OverloadedError("too many bodies are being read", RETRY_AFTER_MS)
        except BaseException as error:
            self._num_held -= num_bytes
            if isinstance(error, TimeoutError):
                raise HttpError(
                    HTTPStatus.REQUEST_TIMEOUT, f"body: must come within {self._timeout_s:g} s"
                ) from None
            raise
        return b"".join(parts)


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        InvalidRequestError: it is none, or nested too deep; the message holds nothing of it.
    """
    _check_shape(body)
    try:
        value = finite_json.loads(body.decode())
    except UnicodeDecodeError:
        raise InvalidRequestError("body", "must be UTF-8") from None
    except json.JSONDecodeError as error:
        raise InvalidRequestError(
            "body", f"must be JSON, got an error in line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError:
        raise InvalidRequestError("body", "must be JSON, got a number that is none") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("body", f"must be a JSON object, got {kind_of(value)}")
    if _SURROGATE.search(body):
        _check_surrogates(value)
    return value


def kind_of(value: object) -> str:
    """Return what a JSON value is, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def _check_shape(body: bytes) -> None:
    """Count what stands outside of strings, before a parser makes objects of it."""
    depth = num_containers = 0
    outside = _STRING.sub(b"", body)
    if outside.count(b",") > MAX_COMMAS:
        raise InvalidRequestError("body", f"must hold at most {MAX_COMMAS} values")
    for found in _BRACKET.finditer(outside):
        if found.group() in b"[{":
            depth += 1
            num_containers += 1
            if depth > MAX_DEPTH:
                raise InvalidRequestError("body", f"must be at most {MAX_DEPTH} levels deep")
            if num_containers > MAX_CONTAINERS:
                raise InvalidRequestError(
                    "body", f"must hold at most {MAX_CONTAINERS} arrays and objects"
                )
        else:
            depth -= 1
            if depth < 0:
                return  # no JSON, as the parser will find


def _check_surrogates(value: object) -> None:
    """Refuse half a character, which no text in UTF-8 can hold."""
    if isinstance(value, dict):
        for key, each in value.items():
            _check_surrogates(key)
            _check_surrogates(each)
    elif isinstance(value, list):
        for each in value:
            _check_surrogates(each)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRequestError(
                "body", "must hold no surrogate (\\ud800 to \\udfff) without its other half"
            ) from None
