"""Taking handlers of calls apart and putting them together again, as interceptors must."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, TypeAlias

import grpc

from quire.contract.errors import InvalidRequestError

# Raises what the call is to end with.
Check: TypeAlias = Callable[[grpc.aio.ServicerContext], None]
Guard: TypeAlias = Callable[[grpc.aio.ServicerContext], AbstractAsyncContextManager[None]]


def behavior_of(handler: grpc.RpcMethodHandler) -> Callable[..., Any]:
    """Return the function that handles a call, whichever of the four kinds it is."""
    behavior: Callable[..., Any] = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    return behavior


async def _as_it_is(request: Any) -> Any:
    return request


def around(
    behavior: Callable[..., Any],
    guard: Guard,
    receive: Callable[[Any], Awaitable[Any]] = _as_it_is,
) -> Callable[..., Any]:
    """Return a handler's function that runs inside a context manager, of the same kind as before.

    A streaming handler may be a generator, or a coroutine that writes to the context (as health's
    Watch is).

    Args:
        behavior: of the handler.
        guard: makes the context manager of a call from the call's context.
        receive: turns what grpc passes for the request into what `behavior` takes; runs inside too.
    """

    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        async with guard(context):
            return await behavior(await receive(request), context)

    async def stream(request: Any, context: grpc.aio.ServicerContext) -> Any:
        # Closing runs the handler's `finally` now, not when the garbage collector gets there.
        async with (
            guard(context),
            aclosing(behavior(await receive(request), context)) as responses,
        ):
            async for response in responses:
                yield response

    return stream if inspect.isasyncgenfunction(behavior) else call


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

    @asynccontextmanager
    async def guard(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
        check(context)
        yield

    make = (
        grpc.stream_stream_rpc_method_handler
        if handler.response_streaming
        else grpc.stream_unary_rpc_method_handler
    )
    return make(
        around(behavior, guard, read),
        # What is unary is parsed above: where grpc does, its error text goes to the client.
        parse if handler.request_streaming else None,
        handler.response_serializer,
    )
