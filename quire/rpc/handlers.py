"""Taking handlers of calls apart and putting them together again, as interceptors must."""

from collections.abc import Callable
from typing import Any

import grpc


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
