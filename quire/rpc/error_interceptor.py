"""Errors of calls: what a server sends of an exception."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, NoReturn

import grpc
from google.protobuf.message import DecodeError

from quire.contract.errors import QuireError
from quire.observe.log import failure_of, get_logger
from quire.observe.tracing import current_span
from quire.rpc.call_errors import STATUS_KEY
from quire.rpc.handlers import around, behavior_of, rebuild
from quire.wire.errors import error_to_status, status_of
from quire.wire.status import CODES

# Calls of clients; calls between our own services carry no texts.
WITH_TEXTS = (
    "/quire.v1.InferenceService/",
    "/inference.GRPCInferenceService/",
    "/vllm.grpc.engine.VllmEngine/",
)

log = get_logger()


class _Outcome(NamedTuple):
    """What grpc ends a call with, in the shape of grpc.Status."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Turns a QuireError into its status and anything else into INTERNAL with an opaque id.

    Without it grpc sends the text of any exception to the client, prompts included.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Wrap the handler of a call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        brings_text = handler_call_details.method.startswith(WITH_TEXTS)

        @asynccontextmanager
        async def guard(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
            try:
                yield
            except Exception as error:
                await _abort(context, error, brings_text)

        behavior, parse = behavior_of(handler), handler.request_deserializer
        if parse is None:
            return rebuild(handler, around(behavior, guard), None)

        # Requests are parsed here: where grpc does, a malformed one is INTERNAL, or its error text
        # goes to the client.
        async def parsed(requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
            async for each in requests:
                yield parse(each)

        async def receive(request: Any) -> Any:
            return parsed(request) if handler.request_streaming else parse(request)

        return rebuild(handler, around(behavior, guard, receive), None)


async def _abort(
    context: grpc.aio.ServicerContext, error: Exception, brings_text: bool
) -> NoReturn:
    """End the call with the status of `error`; a call already aborted stays as it is.

    Args:
        context: of the call.
        error: that its handler raised.
        brings_text: whether a client's text may be in the message of an unexpected error.
    """
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, grpc.aio.InternalError):
        raise asyncio.CancelledError from None  # of a write: the client has gone
    if isinstance(error, QuireError):
        status = error_to_status(error)
    elif isinstance(error, DecodeError):
        status = status_of(
            "INVALID_ARGUMENT", "request: must be a well-formed protobuf message, got other bytes"
        )
    elif isinstance(error, NotImplementedError):
        # Of the protos, and not of this server: what grpc's own stubs raise.
        status = status_of("UNIMPLEMENTED", "not implemented here")
    else:
        error_id = uuid.uuid4().hex
        cause = failure_of(error) if brings_text else {"exc_info": error}
        log.error("unexpected_error", error_id=error_id, **cause)
        current_span().set("quire.error_id", error_id)
        status = status_of("INTERNAL", f"internal error {error_id}; the server's log has more")
    code, details = grpc.StatusCode[CODES[status.code]], ((STATUS_KEY, status.SerializeToString()),)
    try:
        await context.abort_with_status(_Outcome(code, status.message, details))
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None  # the client has gone, and reads no status
    raise AssertionError("abort_with_status returns never")
