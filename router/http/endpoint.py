"""What happens around every request over HTTP, whichever API it is of."""

import asyncio
import re
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar

import structlog
from starlette.types import Receive, Scope, Send

from quire.contract.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    QuireError,
    ReaderStalledError,
    UnavailableError,
)
from quire.observe.log import failure_of, get_logger
from quire.observe.tracing import (
    TRACEPARENT,
    Span,
    SpanKind,
    TraceContext,
    current_span,
    set_current,
    tracer,
)
from router.http.access import HttpAccess, check_roles
from router.http.bodies import Bodies
from router.http.call import REQUEST_ID, HttpCall, to_json
from router.http.errors import ClientGoneError, headers_of, openai_error, status_of
from router.http.event_stream import event_bytes
from router.http.known_fields import TABLES, UnknownFields
from router.requests.inference import Inference

# Of a client that went away before its answer; no such answer is ever sent.
GONE = 499

Handle = Callable[[HttpCall], Awaitable[None]]

log = get_logger()


@dataclass(frozen=True)
class ApiShape:
    """How an API reports what is no answer, as its clients expect it.

    Attributes:
        error_body: returns what reports an error, of the request of an id.
        error_event: type of the event that reports an error in a stream; "" for none.
        status_of: returns the status of an answer that reports an error.
        id_headers: of each answer that carry the request's id.
        own_name: returns what the API calls a field that the contract calls otherwise.
        in_stream: returns how a body, with the type of its event, stands in a stream.
    """

    error_body: Callable[[QuireError, str], dict[str, Any]] = lambda error, _: openai_error(error)
    error_event: str = ""
    status_of: Callable[[QuireError], int] = status_of
    id_headers: Sequence[str] = (REQUEST_ID,)
    own_name: Callable[[str], str] = lambda name: name
    in_stream: Callable[[bytes, str], bytes] = lambda body, event: event_bytes(body, event=event)

    def spelled(self, error: QuireError, own_names: Mapping[str, str]) -> QuireError:
        """Return an error whose field has the name that its client knows it by.

        Args:
            error: to report.
            own_names: of fields of the body, by those that the contract has for them.
        """
        if not isinstance(error, InvalidRequestError):
            return error
        for name, own in own_names.items():
            if error.field == name or error.field.startswith(f"{name}."):
                return error.renamed(own + error.field.removeprefix(name))
        return error.renamed(self.own_name(error.field))


OPENAI = ApiShape()


@dataclass(frozen=True, slots=True)
class BodyDefaults:
    """What a router adds to the bodies of OpenAI's chats and completions.

    Attributes:
        include_usage: end streams with the numbers of tokens.
        tokens_as_ids: show tokens by their ids where their log-probabilities are.
    """

    ROUTES: ClassVar = ("/v1/chat/completions", "/v1/completions")

    include_usage: bool = False
    tokens_as_ids: bool = False

    def added_to(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a body with them."""
        if self.tokens_as_ids:
            body = {"return_tokens_as_token_ids": True, **body}
        options = body.get("stream_options") or {}
        if self.include_usage and body.get("stream") is True and isinstance(options, dict):
            body = {**body, "stream_options": {**options, "include_usage": True}}
        return body


NO_DEFAULTS = BodyDefaults()


@dataclass(frozen=True)
class Around:
    """What the endpoints share.

    Attributes:
        inference: answers requests.
        access: knows callers.
        bodies: reads what requests bring.
        keep_alive_s: how long a stream of events may be silent.
        num_answers: so far, by route and status.
        body_defaults: what this router adds to bodies.
        unknown_fields: of bodies, so far.
    """

    inference: Inference
    access: HttpAccess
    bodies: Bodies
    keep_alive_s: float
    num_answers: Counter[tuple[str, int]]
    body_defaults: BodyDefaults = NO_DEFAULTS
    unknown_fields: UnknownFields = field(default_factory=UnknownFields)


class Endpoint:
    """Answers the requests for one path, as an ASGI application.

    Args:
        around: what the endpoints share.
        route: the path, for traces and metrics.
        handle: answers a call, with the method `answer` or by an EventStream.
        has_body: whether requests bring a JSON object.
        is_open: whether anyone may call it, without a key.
        shape: of the API.
    """

    def __init__(
        self,
        around: Around,
        route: str,
        handle: Handle,
        *,
        has_body: bool = True,
        is_open: bool = False,
        shape: ApiShape = OPENAI,
    ) -> None:
        self._around = around
        self.route = route
        self._handle = handle
        self._has_body = has_body
        self._is_open = is_open
        self._shape = shape
        # Score and rerank have several routes; what counts tokens takes the body of what it counts.
        counted = re.sub(r"/(count|input)_tokens$", "", route)
        self._table = TABLES.get(counted) or TABLES.get(re.sub(r"^/v\d", "", route))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; whatever it raises becomes an answer, or ends the connection."""
        keep_alive_s, id_headers = self._around.keep_alive_s, self._shape.id_headers
        call = HttpCall(scope, receive, send, keep_alive_s, id_headers)
        span = self._start_span(call, scope)
        try:
            try:
                await self._run(call, scope, receive)
            except Exception as error:
                await self._fail(call, error)
            except asyncio.CancelledError:
                # The server stops. A stream breaks off, and its client resumes it elsewhere.
                if call.status is None:
                    await self._fail(call, UnavailableError("the router stops: ask again"))
            if call.status is not None and not call.is_complete:
                call.abort()
        finally:
            call.forget_body()
            status = call.status if call.status is not None else GONE
            self._around.num_answers[self.route, int(status)] += 1
            span.set("http.response.status_code", int(status))
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR or not call.is_complete:
                span.fail(str(int(status)))
            span.end()

    async def _run(self, call: HttpCall, scope: Scope, receive: Receive) -> None:
        call.read_headers()
        check_roles(scope["state"]["connection"].roles)
        if not self._is_open:
            call.caller = self._around.access.caller_of(call.headers)
            if call.caller.name:
                structlog.contextvars.bind_contextvars(api_key=call.caller.name)
        try:
            # The event loop's clock is the monotonic one.
            async with asyncio.timeout_at(call.deadline_s):
                if self._has_body:
                    body, release = await self._around.bodies.read_object(call.headers, receive)
                    if self.route in BodyDefaults.ROUTES:
                        body = self._around.body_defaults.added_to(body)
                    call.keep_body(body, release)
                    call.take_request_id()
                    if self._table is not None:
                        unknown = self._table.check(call.body)
                        self._around.unknown_fields.add(self.route, unknown)
                async with call.while_connected():
                    await self._handle(call)
        except TimeoutError:
            raise DeadlineExceededError("the time that the caller gave has passed") from None

    async def _fail(self, call: HttpCall, error: Exception) -> None:
        """Report an error: as the answer, as an event of a stream, or by breaking off."""
        if isinstance(error, ClientGoneError) or call.is_complete:
            return
        if not isinstance(error, QuireError):
            error_id = uuid.uuid4().hex
            log.error("unexpected_error", error_id=error_id, **failure_of(error))
            current_span().set("quire.error_id", error_id)
            error = QuireError(f"internal error {error_id}; the server's log has more")
        shape = self._shape
        error = shape.spelled(error, call.body.own_names)
        # What has failed is asked about by it, however early that was.
        call.request_id = call.request_id or uuid.uuid4().hex
        body = shape.error_body(error, call.request_id)
        if call.status is None:
            await call.answer(body, shape.status_of(error), headers_of(error))
        elif not isinstance(error, ReaderStalledError):  # who would not read this either
            event = shape.in_stream(to_json(body), shape.error_event)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._around.keep_alive_s):
                    await call.write(event, is_last=True)

    def _start_span(self, call: HttpCall, scope: Scope) -> Span:
        parent = TraceContext.parse(call.headers.get(TRACEPARENT, ""))
        attributes = {"http.request.method": scope["method"], "http.route": self.route}
        name = f"{scope['method']} {self.route}"
        span = tracer().start(name, parent, kind=SpanKind.SERVER, attributes=attributes)
        # Each request is a task of its own: what is set here ends with it.
        set_current(span)
        structlog.contextvars.bind_contextvars(trace_id=span.context.trace_id)
        return span
