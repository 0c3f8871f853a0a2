"""An OpenTelemetry collector in this process: keeps what services send."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class ReceivedSpan:
    """A span, and the service that sent it."""

    service: str
    message: trace_pb2.Span

    @property
    def name(self) -> str:
        return str(self.message.name)

    @property
    def trace_id(self) -> str:
        return bytes(self.message.trace_id).hex()

    @property
    def span_id(self) -> str:
        return bytes(self.message.span_id).hex()

    @property
    def parent_id(self) -> str:
        return bytes(self.message.parent_span_id).hex()

    @property
    def has_failed(self) -> bool:
        return bool(self.message.status.code == trace_pb2.Status.STATUS_CODE_ERROR)

    @property
    def linked_traces(self) -> list[str]:
        return [bytes(link.trace_id).hex() for link in self.message.links]

    @property
    def attributes(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for each in self.message.attributes:
            kind = each.value.WhichOneof("value")
            value = getattr(each.value, kind)
            if kind == "array_value":
                value = [item.string_value for item in value.values]
            found[each.key] = value
        return found


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Attributes:
    address: where it listens.
    requests: all it was sent.
    """

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[trace_service_pb2.ExportTraceServiceRequest] = []

    def Export(
        self,
        request: trace_service_pb2.ExportTraceServiceRequest,
        context: grpc.ServicerContext,
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[ReceivedSpan]:
        found = []
        for request in self.requests:
            for resource in request.resource_spans:
                names = {each.key: each.value.string_value for each in resource.resource.attributes}
                for scope in resource.scope_spans:
                    found += [ReceivedSpan(names["service.name"], span) for span in scope.spans]
        return found


@contextmanager
def running_collector() -> Iterator[Collector]:
    """A collector on a free port of loopback."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
