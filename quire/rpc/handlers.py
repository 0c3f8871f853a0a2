"""Taking handlers of calls apart and putting them together again, as interceptors must."""

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc

from quire.contract.errors import InvalidRequestError

# Raises what the call is to end with.
Check = Callable[[grpc.aio.ServicerContext], None]


def behavior_of(handler: grpc.RpcMethodHandler) -> Callable[..., Any]:
    """Return the function that handles a call, whichever of the four kinds it is."""
    behavior: Callable[..., Any] = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    return behavior


def rebuild(
    handler: grpc.RpcMethodHandler,
    behavior: Callable[..., Any],
    request_deserializer: Callable[[bytes], Any] | None,
) -> grpc.RpcMethodHandler:
    """Return `handler` with another function, and another parser of requests."""
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(behavior, request_deserializer, handler.response_serializer)


def checked(handler: grpc.RpcMethodHandler, check: Check) -> grpc.RpcMethodHandler:
    """Return `handler` behind a check that comes before anything of the request is read.

    It is a streaming handler to grpc, whatever it was, and looks the same on the wire: of a stream
    no message is received before it is asked for, so that whom the check refuses cannot have the
    largest message of all held in memory first.

    Args:
        handler: of any kind.
        check: called with the context of each call; a QuireError of it ends the call.
    """
    behavior = behavior_of(handler)
    parse = handler.request_deserializer

    async def read(requests: AsyncIterator[Any]) -> Any:
        if handler.request_streaming:
            return requests
        async for request in requests:
            return parse(request) if parse is not None else request
        raise InvalidRequestError("request", "must be one message, got none")

    async def call(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> Any:
        check(context)
        return await behavior(await read(requests), context)

    async def stream(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> Any:
        check(context)
        async with aclosing(behavior(await read(requests), context)) as responses:
            async for response in responses:
                yield response

    make = (
        grpc.stream_stream_rpc_method_handler
        if handler.response_streaming
        else grpc.stream_unary_rpc_method_handler
    )
    return make(
        stream if inspect.isasyncgenfunction(behavior) else call,
        # What is unary is parsed above: where grpc does, its error text goes to the client.
        parse if handler.request_streaming else None,
        handler.response_serializer,
    )
