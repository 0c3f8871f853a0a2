"""A trace id for every call, and a span where spans are recorded."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import grpc
import structlog

from quire.observe.tracing import TRACEPARENT, Span, SpanKind, TraceContext, set_current, tracer
from quire.rpc.handlers import around, behavior_of, rebuild
from quire.security.roles import ALLOWED_ROLES

# Spans record only what comes to an end by itself.
_ENDLESS = frozenset(
    {
        "/quire.v1.InferenceService/WatchCluster",
        "/quire.v1.SchedulerService/Session",
        "/quire.v1.WorkerService/Execute",
        "/quire.v1.WorkerService/Heartbeat",
    }
)
# By name, since a span begins before the caller is known: invented methods must not become names
# of spans.
_TRACED = frozenset(name for name in ALLOWED_ROLES if name.startswith("/quire.v1.")) - _ENDLESS


class TracingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Continues the trace that a caller names as `traceparent`, or begins one.

    The trace id is bound to the log lines of the call. Comes before the interceptor for errors,
    whose log lines have it too, and whose outcome is the span's.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Wrap the handler of a call."""
        method = handler_call_details.method
        if method not in _TRACED:
            return await continuation(handler_call_details)
        span = _start(method[1:], _parent(handler_call_details.invocation_metadata))
        # Each call is a task of its own: what is set here ends with it.
        set_current(span)
        structlog.contextvars.bind_contextvars(trace_id=span.context.trace_id)
        handler = await continuation(handler_call_details)
        if handler is None:
            _end(span, grpc.StatusCode.UNIMPLEMENTED)
            return None
        return _ending(handler, span) if tracer().is_on else handler


def _parent(metadata: Sequence[tuple[str, str | bytes]]) -> TraceContext | None:
    for key, value in metadata or ():
        if key == TRACEPARENT and isinstance(value, str):
            return TraceContext.parse(value)
    return None


def _start(method: str, parent: TraceContext | None) -> Span:
    service, _, name = method.rpartition("/")
    attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
    return tracer().start(method, parent, kind=SpanKind.SERVER, attributes=attributes)


def _ending(handler: grpc.RpcMethodHandler, span: Span) -> grpc.RpcMethodHandler:
    """Return a handler that ends the span of its call with what the call ends with."""

    @asynccontextmanager
    async def recorded(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            _end(span, grpc.StatusCode.CANCELLED)
            raise
        except BaseException:
            _end(span, _status(context))
            raise
        else:
            _end(span, grpc.StatusCode.OK)

    return rebuild(handler, around(behavior_of(handler), recorded), handler.request_deserializer)


def _status(context: grpc.aio.ServicerContext) -> grpc.StatusCode:
    """Return what a call that was aborted ends with."""
    code = context.code()
    for status in grpc.StatusCode:
        if code in (status, status.value[0]):
            return status
    return grpc.StatusCode.UNKNOWN


def _end(span: Span, status: grpc.StatusCode) -> None:
    span.set("rpc.grpc.status_code", status.value[0])
    if status is not grpc.StatusCode.OK:
        span.fail(status.name)
    span.end()
