"""Taking handlers of calls apart and putting them together again, as interceptors must."""

import inspect
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import grpc

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
    """Return `handler` behind a check that comes before anything of the request is parsed.

    Args:
        handler: of any kind.
        check: called with the context of each call; a QuireError of it ends the call.
    """
    behavior = behavior_of(handler)
    parse = None if handler.request_streaming else handler.request_deserializer
    parser = handler.request_deserializer if handler.request_streaming else None

    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        check(context)
        return await behavior(parse(request) if parse else request, context)

    async def stream(request: Any, context: grpc.aio.ServicerContext) -> Any:
        check(context)
        async with aclosing(behavior(parse(request) if parse else request, context)) as responses:
            async for response in responses:
                yield response

    return rebuild(handler, stream if inspect.isasyncgenfunction(behavior) else call, parser)
