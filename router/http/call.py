"""One request over HTTP: who makes it, until when they wait, and the way back to them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Protocol

from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive, Scope, Send

from quire.contract.callers import ANYONE, Caller
from quire.contract.errors import InvalidRequestError
from router.http.errors import ClientGoneError
from router.http.fields import Fields
from router.requests.validate import MAX_REQUEST_ID_CHARS

REQUEST_ID = "x-request-id"
TIMEOUT = "x-request-timeout-s"
LAST_EVENT_ID = "last-event-id"
# A deadline further away is none.
MAX_TIMEOUT_S = 86_400.0
# JSON escapes all others at which str.splitlines, and so httpx, splits a text.
_LINE_BREAKS = (("\u0085", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


class Breakable(Protocol):
    """A connection that can be broken off."""

    def abort(self) -> None:
        """Break off at once: what is not sent yet is dropped."""


def is_id(request_id: str) -> bool:
    """Return whether an id may go into a header of the answer."""
    return len(request_id) <= MAX_REQUEST_ID_CHARS and all("!" <= c <= "~" for c in request_id)


def check_id(field: str, request_id: str) -> None:
    """Check an id that goes into a header of the answer.

    Raises:
        InvalidRequestError: it is too long, or has other characters than a header may have.
    """
    if not is_id(request_id):
        raise InvalidRequestError(
            field, f"must be at most {MAX_REQUEST_ID_CHARS} printable ASCII characters, no spaces"
        )


class HttpCall:
    """A request, and what has been answered.

    Attributes:
        headers: of the request.
        path_params: parts of its path, by name.
        query: what follows its path.
        base_url: under which its client finds the paths.
        caller: who makes it.
        body: fields of its body; none where it has no body, or not any more.
        request_id: that it brings, or that was drawn for it; "" before either.
        deadline_s: until when its client waits, on the monotonic clock; None for ever.
        status: of the answer; None before that has begun.
        is_complete: whether all of the answer is on its way.
        keep_alive_s: how long a stream of events may be silent.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        keep_alive_s: float,
        id_headers: Sequence[str] = (REQUEST_ID,),
    ) -> None:
        self.headers = Headers(scope=scope)
        self.path_params: Mapping[str, str] = scope.get("path_params", {})
        self.query = QueryParams(scope["query_string"])
        host = self.headers.get("host", "localhost")
        self.base_url = f"{scope.get('scheme', 'http')}://{host}{scope.get('root_path', '')}"
        self.caller: Caller = ANYONE
        self.body = Fields({})
        self.request_id = ""
        self.deadline_s: float | None = None
        self.status: int | None = None
        self.is_complete = False
        self.keep_alive_s = keep_alive_s
        self._id_headers = id_headers
        self._release_body: Callable[[], None] | None = None
        self._connection: Breakable = scope["state"]["connection"]
        self._receive = receive
        self._send = send

    def read_headers(self) -> None:
        """Take request id and deadline of the headers.

        Raises:
            InvalidRequestError: one is malformed.
        """
        request_id = self.headers.get(REQUEST_ID, "")
        check_id(REQUEST_ID, request_id)
        self.request_id = request_id
        timeout = self.headers.get(TIMEOUT)
        if timeout is not None:
            try:
                timeout_s = float(timeout[:32])
            except ValueError:
                timeout_s = -1.0
            if not 0.0 < timeout_s <= MAX_TIMEOUT_S:
                raise InvalidRequestError(
                    TIMEOUT, f"must be seconds in (0, {MAX_TIMEOUT_S:g}], got another value"
                )
            self.deadline_s = time.monotonic() + timeout_s

    def keep_body(self, values: Mapping[str, Any], release: Callable[[], None]) -> None:
        """Take the body.

        Args:
            values: of its fields.
            release: is called once it is forgotten.
        """
        self.body, self._release_body = Fields(values), release

    def take_request_id(self) -> None:
        """Take the request id of the body, vLLM's field, where no header has one.

        Raises:
            InvalidRequestError: it is malformed.
        """
        if not self.request_id and "request_id" in self.body:
            request_id = self.body.text("request_id")
            check_id("request_id", request_id)
            self.request_id = request_id

    def forget_body(self) -> None:
        """Let the body go, once all that is wanted was read of it: a stream may last for hours."""
        own_names, self.body = self.body.own_names, Fields({})
        self.body.own_names = own_names  # errors have them yet
        if self._release_body is not None:
            self._release_body()
            self._release_body = None

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send status and headers of the answer."""
        self.status = status
        if self.request_id:
            headers = {**dict.fromkeys(self._id_headers, self.request_id), **headers}
        headers = {"date": formatdate(usegmt=True), **headers}
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, content: bytes, is_last: bool = False) -> None:
        """Send a part of the answer; waits while the client reads too little."""
        self.is_complete = is_last
        await self._send({"type": "http.response.body", "body": content, "more_body": not is_last})

    async def answer(
        self,
        content: Any,
        status: int = HTTPStatus.OK,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send the whole answer.

        Args:
            content: what becomes JSON.
            status: of the answer.
            headers: beside those of every answer.
        """
        await self.answer_with(to_json(content), "application/json", status, headers)

    async def answer_with(
        self,
        body: bytes,
        content_type: str,
        status: int = HTTPStatus.OK,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send the whole answer as it stands; arguments as of `answer`."""
        own = {"content-type": content_type, "content-length": str(len(body))}
        await self.begin(status, {**own, **(headers or {})})
        await self.write(body, is_last=True)

    def abort(self) -> None:
        """Break the connection off: nothing that could still be said would arrive."""
        self._connection.abort()

    @asynccontextmanager
    async def while_connected(self) -> AsyncIterator[None]:
        """Cancel what is done inside when the client goes away. The body must have been read.

        Raises:
            ClientGoneError: in the place of what was cancelled.
        """
        task = asyncio.current_task()
        assert task is not None, "in the request's task"
        has_gone = False

        async def watch() -> None:
            nonlocal has_gone
            while (await self._receive())["type"] != "http.disconnect":
                pass  # the end of a body that is not wanted
            if not self.is_complete:
                has_gone = True
                task.cancel()

        watching = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if has_gone and not task.uncancel():
                raise ClientGoneError from None
            raise
        finally:
            watching.cancel()


def to_json(content: Any) -> bytes:
    """Return JSON without spaces, in UTF-8, and one line to clients that split at Unicode's.

    Raises:
        ValueError: it holds a number that is not finite, which JSON has no word for.
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escaped in _LINE_BREAKS:
        text = text.replace(character, escaped)
    return text.encode()
