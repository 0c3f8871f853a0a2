"""The trace of a call at the router: continued or begun, in logs and spans, whatever happens."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from quire import SamplingParams
from quire.contract.errors import InvalidRequestError, QuireError
from quire.observe import tracing
from quire.observe.tracing import Attribute, Span, SpanKind, TraceContext, Tracer
from quire.rpc import open_channel
from quire.v1 import inference_pb2, inference_pb2_grpc
from router.text.tokenize import Tokenizer
from tests.rpc.router_setup import running_router

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = TraceContext(TRACE, SPAN, is_sampled=True)
SECRET = "a prompt that no other may see"


class RecordedSpan(Span):
    """A span that can be looked at."""

    def __init__(self, name: str, parent: TraceContext | None) -> None:
        new = TraceContext.new()
        super().__init__(TraceContext(parent.trace_id if parent else new.trace_id, new.span_id))
        self.name = name
        self.parent = parent
        self.attributes: dict[str, Attribute] = {}
        self.failure = ""
        self.num_ends = 0

    def set(self, name: str, value: Attribute) -> None:
        assert not self.num_ends, "a span that has ended takes no attributes"
        self.attributes[name] = value

    def fail(self, reason: str) -> None:
        self.failure = reason

    def end(self, end_ns: int | None = None) -> None:
        self.num_ends += 1


class RecordingTracer(Tracer):
    is_on = True

    def __init__(self) -> None:
        self.spans: list[RecordedSpan] = []

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
        span = RecordedSpan(name, parent)
        span.attributes |= attributes or {}
        self.spans.append(span)
        return span

    def named(self, name: str) -> RecordedSpan:
        (span,) = (each for each in self.spans if each.name.endswith(name))
        return span


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> RecordingTracer:
    recording = RecordingTracer()
    monkeypatch.setattr(tracing, "_tracer", recording)
    return recording


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Log lines with what is bound to their context, whatever other tests have configured."""
    lines: list[dict[str, Any]] = []

    def keep(logger: Any, method: str, line: dict[str, Any]) -> dict[str, Any]:
        lines.append(line)
        raise structlog.DropEvent

    processors = [structlog.contextvars.merge_contextvars, keep]
    for module in ("router.requests.trail", "quire.rpc.error_interceptor"):
        log = structlog.wrap_logger(
            None, processors, structlog.make_filtering_bound_logger(logging.DEBUG)
        )
        monkeypatch.setattr(f"{module}.log", log)
    return lines


@pytest.mark.parametrize("traceparent", [PARENT.traceparent, "", "nonsense", "00-0-0-00"])
async def test_a_request_has_one_trace_id_where_no_spans_are_recorded(
    tmp_path: Path, logs: list[dict[str, Any]], traceparent: str
) -> None:
    async with running_router(tmp_path) as setup:
        await setup.client.generate([1, 2], SamplingParams(max_tokens=2), traceparent=traceparent)
    (request,) = setup.fake.submitted
    sent = TraceContext.parse(request.traceparent)
    assert sent is not None
    if traceparent == PARENT.traceparent:
        assert sent == PARENT, "the next span is a child of the client's"
    else:
        assert not sent.is_sampled
    of_request = [line for line in logs if line["event"].startswith("request_")]
    assert [line["event"] for line in of_request] == ["request_queued", "request_finished"]
    assert {line["trace_id"] for line in of_request} == {sent.trace_id}


async def test_the_span_of_a_call_records_its_outcome(
    tmp_path: Path, tracer: RecordingTracer
) -> None:
    async with running_router(tmp_path) as setup:
        params = SamplingParams(max_tokens=3, stop=(SECRET,))
        await setup.client.generate("some text", params, traceparent=PARENT.traceparent)
    call = tracer.named("/Generate")
    assert (call.parent, call.num_ends, call.failure) == (PARENT, 1, "")
    assert call.attributes["rpc.grpc.status_code"] == 0
    assert call.attributes["gen_ai.usage.output_tokens"] == 3
    assert call.attributes["gen_ai.request.max_tokens"] == 3
    assert SECRET not in str(call.attributes)
    tokenize = tracer.named("tokenize")
    assert (tokenize.parent, tokenize.num_ends) == (call.context, 1)
    (request,) = setup.fake.submitted
    assert request.traceparent == call.context.traceparent


async def test_a_refused_call_ends_with_its_status(tmp_path: Path, tracer: RecordingTracer) -> None:
    async with running_router(tmp_path) as setup:
        with pytest.raises(InvalidRequestError):
            await setup.client.generate([], SamplingParams())
    call = tracer.named("/Generate")
    assert (call.failure, call.num_ends) == ("INVALID_ARGUMENT", 1)
    assert call.attributes["rpc.grpc.status_code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]


async def test_a_bug_is_reported_by_its_error_id_alone(
    tmp_path: Path,
    tracer: RecordingTracer,
    logs: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def encode(self: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        raise RuntimeError(f"cannot do {text}")

    monkeypatch.setattr(Tokenizer, "encode", encode)
    async with running_router(tmp_path) as setup:
        with pytest.raises(QuireError) as caught:
            await setup.client.generate(SECRET, SamplingParams())
    call = tracer.named("/Generate")
    error_id = str(call.attributes["quire.error_id"])
    assert (call.failure, call.num_ends) == ("INTERNAL", 1)
    assert error_id in caught.value.message
    (line,) = (line for line in logs if line["event"] == "unexpected_error")
    assert (line["error_id"], line["trace_id"]) == (error_id, call.context.trace_id)
    assert line["error_type"] == "RuntimeError"
    assert "in encode" in line["traceback"]
    recorded = str([logs, [(each.attributes, each.failure) for each in tracer.spans]])
    assert SECRET not in recorded + caught.value.message


async def test_a_call_whose_client_goes_away_ends_as_cancelled(
    tmp_path: Path, tracer: RecordingTracer
) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        stream = setup.client.stream([1, 2], SamplingParams(max_tokens=9))
        await anext(stream)
        await stream.aclose()
        call = tracer.named("/Generate")
        async with asyncio.timeout(20):
            while not call.num_ends:
                await asyncio.sleep(0.01)
    assert (call.failure, call.num_ends) == ("CANCELLED", 1)
    assert call.attributes["gen_ai.response.finish_reasons"] == ("client_gone",)


async def test_a_call_without_a_key_is_a_span_too(tmp_path: Path, tracer: RecordingTracer) -> None:
    keys = tmp_path / "keys.jsonl"
    keys.write_text("")
    async with running_router(tmp_path, api_keys=keys) as setup:
        with pytest.raises(QuireError):
            await setup.client.list_models()
    call = tracer.named("/ListModels")
    assert (call.failure, call.num_ends) == ("UNAUTHENTICATED", 1)


async def test_calls_that_never_end_and_methods_of_others_are_no_spans(
    tmp_path: Path, tracer: RecordingTracer
) -> None:
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        watch = inference_pb2_grpc.InferenceServiceStub(channel).WatchCluster(
            inference_pb2.WatchClusterRequest()
        )
        await watch.read()
        watch.cancel()
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/quire.v1.InferenceService/Nothing")(b"")
    assert tracer.spans == [], "a name that a caller made up is none of ours"
