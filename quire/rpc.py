"""What the services share about gRPC: channels, servers, health, reflection, errors, stopping.

Of the channel arguments, `ping_timeout_ms` is the one that notices a peer that has stopped
answering; in current grpc `keepalive_timeout_ms` alone has no effect.
"""

import asyncio
import inspect
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_status import rpc_status

from quire.errors import InvalidRequestError, OverloadedError, QuireError, UnavailableError
from quire.log import get_logger

MAX_MESSAGE_BYTES = 64 * 2**20
ERROR_DOMAIN = "quire"

_KEEPALIVE: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_KEEPALIVE,
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

log = get_logger()


def server_options(max_receive_bytes: int = MAX_MESSAGE_BYTES) -> tuple[tuple[str, int], ...]:
    """Return the options of a server that reads messages of at most `max_receive_bytes`."""
    return (
        *_KEEPALIVE,
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", max_receive_bytes),
        ("grpc.so_reuseport", 0),
    )


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
        behavior = _behavior(handler)
        # A streaming handler may also be a plain coroutine that writes to the context (health's
        # Watch is).
        guard = _guard_stream if inspect.isasyncgenfunction(behavior) else _guard_call
        if handler.request_streaming or handler.request_deserializer is None:
            return _rebuild(handler, guard(behavior, _as_it_is), handler.request_deserializer)
        # We parse the request ourselves: where grpc does, its error text goes to the client.
        return _rebuild(handler, guard(behavior, handler.request_deserializer), None)


def _as_it_is(request: Any) -> Any:
    return request


def _behavior(handler: grpc.RpcMethodHandler) -> Callable[..., Any]:
    behavior: Callable[..., Any] = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    return behavior


def _rebuild(
    handler: grpc.RpcMethodHandler,
    behavior: Callable[..., Any],
    request_deserializer: Callable[[bytes], Any] | None,
) -> grpc.RpcMethodHandler:
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(behavior, request_deserializer, handler.response_serializer)


def _guard_call(behavior: Callable[..., Any], parse: Callable[[Any], Any]) -> Callable[..., Any]:
    async def guarded(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            return await behavior(parse(request), context)
        except Exception as error:
            await _abort(context, error)

    return guarded


def _guard_stream(behavior: Callable[..., Any], parse: Callable[[Any], Any]) -> Callable[..., Any]:
    async def guarded(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            # Closing runs the handler's `finally` now, not when the garbage collector gets there.
            async with aclosing(behavior(parse(request), context)) as stream:
                async for response in stream:
                    yield response
        except Exception as error:
            await _abort(context, error)

    return guarded


async def _abort(context: grpc.aio.ServicerContext, error: Exception) -> NoReturn:
    """End the call with the status of `error`; a call already aborted stays as it is."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, QuireError):
        status = status_of(error)
    elif isinstance(error, DecodeError):
        status = status_pb2.Status(
            code=code_pb2.INTERNAL, message="the request is not a well-formed protobuf message"
        )
    else:
        error_id = uuid.uuid4().hex
        log.error("unexpected_error", error_id=error_id, exc_info=error)
        status = status_pb2.Status(
            code=code_pb2.INTERNAL, message=f"internal error {error_id}; the server's log has more"
        )
    await context.abort_with_status(rpc_status.to_status(status))
    raise AssertionError("abort_with_status returns never")


class Server:
    """A gRPC server with health and reflection, bound to exactly the address given.

    Health says NOT_SERVING until `set_serving(True)`.
    """

    def __init__(self, service_names: Sequence[str], max_receive_bytes: int = MAX_MESSAGE_BYTES):
        self.grpc_server = grpc.aio.server(
            interceptors=[ErrorInterceptor()], options=server_options(max_receive_bytes)
        )
        self._service_names = ("", *service_names)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc_server)
        _add_reflection(
            (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), self.grpc_server
        )
        self.address = ""

    async def start(self, host: str, port: int) -> str:
        """Bind and serve.

        Args:
            host: address to bind, and no other.
            port: 0 takes a free one.

        Returns:
            The address bound, e.g. "127.0.0.1:50051".

        Raises:
            UnavailableError: the address cannot be bound.
        """
        await self.set_serving(False)
        try:
            bound = self.grpc_server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise UnavailableError(f"cannot listen on {host}:{port}: is it in use?") from error
        await self.grpc_server.start()
        self.address = f"{host}:{bound}"
        log.info("listening", address=self.address)
        return self.address

    async def set_serving(self, serving: bool) -> None:
        """Set what the health service answers for every service of this server."""
        state = health_pb2.HealthCheckResponse.ServingStatus.Value(
            "SERVING" if serving else "NOT_SERVING"
        )
        for name in self._service_names:
            await self._health.set(name, state)

    async def stop(self, grace_s: float = 1.0) -> None:
        """Say NOT_SERVING, refuse new calls, give running ones `grace_s`, then end them."""
        await self._health.enter_graceful_shutdown()
        await self.grpc_server.stop(grace_s)


def _add_reflection(names: tuple[str, ...], server: grpc.aio.Server) -> None:
    """Serve reflection as v1alpha and as v1: same messages, but the library knows only v1alpha."""
    reflection.enable_server_reflection(names, server)
    servicer = reflection.aio.ReflectionServicer(names)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "grpc.reflection.v1.ServerReflection", {"ServerReflectionInfo": handler}
            ),
        )
    )


def open_channel(address: str) -> grpc.aio.Channel:
    """Return a channel to `address` that notices a dead peer within about fifteen seconds."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


async def until_serving(address: str, service: str) -> None:
    """Return when a service at `address` says that it serves."""
    request = health_pb2.HealthCheckRequest(service=service)
    async with open_channel(address) as channel:
        while True:
            watch = health_pb2_grpc.HealthStub(channel).Watch(request, wait_for_ready=True)
            try:
                async for response in watch:
                    if response.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.2)  # it ended while it was asked, or is something else
            finally:
                watch.cancel()


async def stop_signal() -> signal.Signals:
    """Return when this process is asked to stop, by SIGINT or SIGTERM, and say which it was."""
    received: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, received.put_nowait, number)
    return await received.get()


def report(ready_fd: int | None, line: str) -> None:
    """Tell the parent process how a start goes that `announce` will end.

    Args:
        ready_fd: file descriptor to write to; None does nothing.
        line: "listening HOST:PORT", or "waiting for WHAT".
    """
    if ready_fd is not None:
        # A parent that has gone takes this process with it by other means.
        with suppress(BrokenPipeError):
            os.write(ready_fd, (line.replace("\n", " ") + "\n").encode())


def announce(ready_fd: int | None, line: str) -> None:
    """Tell the parent process, over the pipe it passed as `ready_fd`, how the start went.

    Args:
        ready_fd: file descriptor to write to and close; None does nothing.
        line: "ready HOST:PORT" or "error MESSAGE".
    """
    if ready_fd is None:
        return
    with os.fdopen(ready_fd, "w") as pipe:
        pipe.write(line.replace("\n", " ") + "\n")
