"""Errors on the wire: google.rpc.Status, and nothing of an exception's text beyond it."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from quire.contract.errors import InvalidRequestError, OverloadedError, QuireError
from quire.observe.log import failure_of, get_logger
from quire.observe.tracing import current_span
from quire.rpc.handlers import around, behavior_of, rebuild

ERROR_DOMAIN = "quire"
# Calls of clients; calls between our own services carry no texts.
WITH_TEXTS = "/quire.v1.InferenceService/"

log = get_logger()


def status_of(error: QuireError) -> status_pb2.Status:
    """Return an error as google.rpc.Status: ErrorInfo, and BadRequest or RetryInfo if they fit."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN)
    details: list[Any] = [info]
    if isinstance(error, InvalidRequestError):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.description
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, OverloadedError):
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = []
    for detail in details:
        wrapped = any_pb2.Any()
        wrapped.Pack(detail)
        packed.append(wrapped)
    return status_pb2.Status(
        code=code_pb2.Code.Value(error.code), message=error.message, details=packed
    )


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
        if handler.request_streaming or parse is None:
            return rebuild(handler, around(behavior, guard), parse)

        # The request is parsed here: where grpc does, its error text goes to the client.
        async def receive(request: bytes) -> Any:
            return parse(request)

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
    if isinstance(error, QuireError):
        status = status_of(error)
    elif isinstance(error, DecodeError):
        status = status_pb2.Status(
            code=code_pb2.INTERNAL, message="the request is not a well-formed protobuf message"
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
    await context.abort_with_status(rpc_status.to_status(status))
    raise AssertionError("abort_with_status returns never")
