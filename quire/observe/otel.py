"""Spans that are recorded: OpenTelemetry, sent to a collector over OTLP."""

import logging
import os
import socket
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import TYPE_CHECKING

from quire.contract.addresses import check_url
from quire.contract.errors import ConfigError
from quire.observe.log import get_logger
from quire.observe.tracing import Attribute, Span, SpanKind, TraceContext, Tracer

if TYPE_CHECKING:
    from opentelemetry import trace

MAX_LINKS = 32
# A service that stops waits no longer for a collector that is gone.
EXPORT_TIMEOUT_S = 2
_EXPORTER = "opentelemetry-exporter-otlp-proto-grpc"
log = get_logger()

MISSING = "otlp_endpoint: traces need OpenTelemetry: pip install 'quire-serve[traces]'"


def check_endpoint(endpoint: str) -> None:
    """Check that spans can be sent to a collector, as far as that shows without a connection.

    Raises:
        ConfigError: the endpoint is no URL, or OpenTelemetry is not installed.
    """
    check_url("otlp_endpoint", endpoint)
    try:
        version(_EXPORTER)
    except PackageNotFoundError:
        raise ConfigError(MISSING) from None


class OtelSpan(Span):
    """A span of the OpenTelemetry SDK."""

    def __init__(self, span: "trace.Span") -> None:
        context = span.get_span_context()
        super().__init__(
            TraceContext(
                f"{context.trace_id:032x}", f"{context.span_id:016x}", context.trace_flags.sampled
            )
        )
        self._span = span

    def set(self, name: str, value: Attribute) -> None:
        """Say something about it."""
        self._span.set_attribute(name, value)

    def fail(self, reason: str) -> None:
        """It did not come to its end."""
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("error.type", reason)
        self._span.set_status(StatusCode.ERROR)

    def end(self, end_ns: int | None = None) -> None:
        """It is over."""
        self._span.end(end_ns)


class OtelTracer(Tracer):
    """Records what the SDK's sampler takes: all, unless OTEL_TRACES_SAMPLER sets another.

    Spans are sent by a thread of the SDK, in batches; if the collector cannot keep up or is gone,
    they are dropped, and nothing else waits.

    Args:
        service: name of the process among others.
        endpoint: see `quire.observe.tracing.configure`.
    """

    is_on = True

    def __init__(self, service: str, endpoint: str) -> None:
        scheme = check_url("otlp_endpoint", endpoint)
        try:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise ConfigError(MISSING) from error
        names = {
            "service.name": f"quire-{service}",
            "service.version": version("quire-serve"),
            "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        }
        self._provider = TracerProvider(resource=Resource.create(names))
        exporter = OTLPSpanExporter(
            endpoint=endpoint, insecure=scheme == "http", timeout=EXPORT_TIMEOUT_S
        )
        _log_as_we_do()
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("quire")

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
        """Return a new span that has begun; at most MAX_LINKS of its links are kept."""
        from opentelemetry import trace
        from opentelemetry.context import Context

        context = Context()
        if parent is not None:
            remote = trace.NonRecordingSpan(_span_context(parent))
            context = trace.set_span_in_context(remote, context)
        return OtelSpan(
            self._tracer.start_span(
                name,
                context,
                trace.SpanKind[kind.name],
                dict(attributes or {}),
                [trace.Link(_span_context(each)) for each in islice(links, MAX_LINKS)],
                start_ns,
            )
        )

    def stop(self) -> None:
        """Send what is not sent yet, for as long as the exporter tries."""
        self._provider.shutdown()


class _LogHandler(logging.Handler):
    """Writes OpenTelemetry's own messages as lines of our log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        log.warning("trace_export", message=record.getMessage())


def _log_as_we_do() -> None:
    """Without a handler, Python would print its warnings as they are, between lines of JSON."""
    logger = logging.getLogger("opentelemetry")
    logger.handlers = [_LogHandler(logging.WARNING)]
    logger.propagate = False


def _span_context(context: TraceContext) -> "trace.SpanContext":
    from opentelemetry import trace

    return trace.SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(context.is_sampled)),
    )
