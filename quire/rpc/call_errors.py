"""Errors of calls: what a server sends of an exception, and what a client raises again."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, status_pb2
from grpc_status import rpc_status

from quire.contract.errors import (
    ConfigError,
    DeadlineExceededError,
    InvalidRequestError,
    ModelNotFoundError,
    PermissionDeniedError,
    QuireError,
    RequestExistsError,
    UnauthenticatedError,
    UnavailableError,
)
from quire.observe.log import failure_of, get_logger
from quire.observe.tracing import current_span
from quire.rpc.handlers import around, behavior_of, rebuild
from quire.security.handshake import explain
from quire.wire.errors import error_from_status, error_to_status

# Calls of clients; calls between our own services carry no texts.
WITH_TEXTS = "/quire.v1.InferenceService/"

log = get_logger()

# For statuses that no service of ours made: the connection's, a proxy's, or a later version's.
_BY_CODE: dict[grpc.StatusCode, type[QuireError]] = {
    grpc.StatusCode.NOT_FOUND: ModelNotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: RequestExistsError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    # A server, or a proxy before it, gave the call up.
    grpc.StatusCode.CANCELLED: UnavailableError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.FAILED_PRECONDITION: ConfigError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
}


def sent_error(error: grpc.RpcError) -> QuireError | None:
    """Return the error that a service of ours ended a call with; None if none of ours did.

    Args:
        error: of a synchronous or an asyncio call.
    """
    status = rpc_status.from_call(error)
    return None if status is None else error_from_status(status)


def error_from_rpc(error: grpc.RpcError) -> QuireError:
    """Return the error that a failed call means: as it was raised, or else by the status code.

    Args:
        error: of a synchronous or an asyncio call.
    """
    sent = sent_error(error)
    if sent is not None:
        return sent
    code, message = error.code(), explain(error.details() or error.code().name)
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED and rpc_status.from_call(error) is None:
        # Not our queue but the transport: the message is larger than the server reads.
        return InvalidRequestError("request", message)
    return _BY_CODE.get(code, QuireError)(message)


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
        status = status_pb2.Status(
            code=code_pb2.INVALID_ARGUMENT,
            message="request: must be a well-formed protobuf message, got other bytes",
        )
    elif isinstance(error, NotImplementedError):
        # Of the protos, and not of this server: what grpc's own stubs raise.
        status = status_pb2.Status(code=code_pb2.UNIMPLEMENTED, message="not implemented here")
    else:
        error_id = uuid.uuid4().hex
        cause = failure_of(error) if brings_text else {"exc_info": error}
        log.error("unexpected_error", error_id=error_id, **cause)
        current_span().set("quire.error_id", error_id)
        status = status_pb2.Status(
            code=code_pb2.INTERNAL, message=f"internal error {error_id}; the server's log has more"
        )
    try:
        await context.abort_with_status(rpc_status.to_status(status))
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None  # the client has gone, and reads no status
    raise AssertionError("abort_with_status returns never")
