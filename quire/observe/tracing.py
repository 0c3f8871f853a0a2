"""Traces: by what one request is known in the logs and spans of every service.

Every request has a trace id, which its log lines carry. A service that has an endpoint for spans
records them with `quire.observe.otel`; others import nothing of OpenTelemetry.
"""

import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

# Key of the metadata in which a caller sends its context.
TRACEPARENT = "traceparent"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
# https://www.w3.org/TR/trace-context/#version
_INVALID_VERSION = "ff"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Of a span that others continue: W3C Trace Context.

    Attributes:
        trace_id: 32 hexadecimal digits, not all zero.
        span_id: 16 hexadecimal digits, not all zero.
        is_sampled: whether spans of this trace are recorded.
    """

    trace_id: str
    span_id: str
    is_sampled: bool = False

    @classmethod
    def new(cls) -> "TraceContext":
        """Return the context of a trace that begins here and is not recorded."""
        # Zero would mean that there is none.
        trace_id, span_id = 1 + secrets.randbelow(2**128 - 1), 1 + secrets.randbelow(2**64 - 1)
        return cls(f"{trace_id:032x}", f"{span_id:016x}")

    @classmethod
    def parse(cls, traceparent: str) -> "TraceContext | None":
        """Read what a peer sent; None for what is no trace context, which the standard ignores."""
        found = _TRACEPARENT.fullmatch(traceparent)
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        if version == _INVALID_VERSION or (version == "00" and more):
            return None
        if not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))

    @property
    def traceparent(self) -> str:
        """What is sent to a peer."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


Attribute = str | int | float | bool | Sequence[str]


class SpanKind(StrEnum):
    """How a span relates to those of other services."""

    INTERNAL = "internal"
    SERVER = "server"


class Span:
    """Something that takes time. This class records nothing; one of `quire.observe.otel` does.

    Attributes:
        context: for those who continue the trace.
    """

    def __init__(self, context: TraceContext) -> None:
        self.context = context

    def set(self, name: str, value: Attribute) -> None:
        """Set an attribute, which must hold no text of a prompt or an answer."""

    def fail(self, reason: str) -> None:
        """It did not come to its end. The reason is a constant, never an exception's text."""

    def end(self, end_ns: int | None = None) -> None:
        """It is over: now, or at this time of `time.time_ns`."""


class Tracer:
    """Makes the spans of a process. This one records none.

    Attributes:
        is_on: whether spans of sampled traces are recorded.
    """

    is_on = False

    def start(
        self,
        name: str,
        parent: TraceContext | None = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Attribute] | None = None,
        links: Iterable[TraceContext] = (),
        start_ns: int | None = None,
    ) -> Span:
        """Return a new span that has begun.

        Args:
            name: one of few; what varies are attributes.
            parent: None begins a trace.
            kind: see SpanKind.
            attributes: known from the start.
            links: spans of other traces that it belongs to as well.
            start_ns: of `time.time_ns`; None for now.
        """
        return Span(parent or TraceContext.new())

    def stop(self) -> None:
        """Send what is not sent yet."""


_tracer = Tracer()
_current: ContextVar[Span | None] = ContextVar("span", default=None)


def tracer() -> Tracer:
    """Return the tracer of this process."""
    return _tracer


def configure(service: str, endpoint: str | None) -> None:
    """Begin to export the spans of this process; without an endpoint, none are recorded.

    Args:
        service: its name, "router", "scheduler" or "worker".
        endpoint: of an OpenTelemetry collector that takes OTLP over gRPC, "http://HOST:PORT", or
            "https://HOST:PORT" for TLS.

    Raises:
        ConfigError: this is no endpoint, or OpenTelemetry is not installed.
    """
    global _tracer  # noqa: PLW0603 - one for the process, as its logger
    if endpoint:
        from quire.observe.otel import OtelTracer

        _tracer = OtelTracer(service, endpoint)


def current_span() -> Span:
    """Return the span of the call that this code runs for, or one that records nothing."""
    return _current.get() or Span(TraceContext.new())


def set_current(span: Span) -> None:
    """Make a span the current one of this task."""
    _current.set(span)


@contextmanager
def child(name: str) -> Iterator[Span]:
    """A span around what happens inside, part of the current one."""
    span = _tracer.start(name, current_span().context)
    try:
        yield span
    except BaseException as error:
        span.fail(type(error).__name__)
        raise
    finally:
        span.end()


_EPOCH_NS = time.time_ns() - time.monotonic_ns()


def wall_ns(monotonic_s: float) -> int:
    """Return a reading of `time.monotonic` as one of `time.time_ns`."""
    return _EPOCH_NS + round(1e9 * monotonic_s)
