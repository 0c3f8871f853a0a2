"""One trace id from the client to the workers, and no word of a prompt on the way."""

import asyncio
import itertools
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterable
from http.client import HTTPConnection
from typing import Any

import grpc
import pytest

from launch.cluster.supervisor import Cluster
from quire import AsyncClient, SamplingParams
from quire.contract.errors import QuireError, RequestExistsError
from quire.contract.outputs import Delta, Event
from quire.observe.tracing import TraceContext
from quire.rpc import open_channel
from quire.v1 import inference_pb2
from tests.e2e.conftest import StartCluster
from tests.otlp_collector import Collector, ReceivedSpan, running_collector

PROMPT = "The list class"
PARAMS = SamplingParams(seed=1, max_tokens=12, ignore_eos=True)


def log_lines(text: str) -> list[dict[str, Any]]:
    """The lines of all services: each is JSON, or this fails."""
    return [json.loads(line) for line in text.splitlines() if line]


def services_of(lines: Iterable[dict[str, Any]], trace_id: str) -> set[str]:
    return {line["service"] for line in lines if line.get("trace_id") == trace_id}


async def test_one_trace_id_is_in_the_logs_and_spans_of_all_services(
    start_cluster: StartCluster,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampled = TraceContext(os.urandom(16).hex(), os.urandom(8).hex(), is_sampled=True)
    silent = TraceContext(os.urandom(16).hex(), os.urandom(8).hex(), is_sampled=False)
    with running_collector() as collector:
        async with (
            start_cluster(
                tensor_parallel_size=2,
                log_level="debug",
                otlp_endpoint=f"http://{collector.address}",
            ) as cluster,
            AsyncClient(cluster.router.address) as client,
        ):
            for parent in (sampled, silent):
                await client.generate(PROMPT, PARAMS, traceparent=parent.traceparent)
            await client.generate(PROMPT, PARAMS, request_id="without a trace")
            await cancel_one(client, cluster)
        # Stopped, the services have sent all they had.
        spans = collector.spans
    lines = log_lines(capfd.readouterr().err)
    for parent in (sampled, silent):
        assert services_of(lines, parent.trace_id) == {"router", "scheduler", "worker"}
    [begun] = {line["trace_id"] for line in lines if line.get("request_id") == "without a trace"}
    assert services_of(lines, begun) == {"router", "scheduler", "worker"}

    assert not [span for span in spans if span.trace_id == silent.trace_id]
    check_request_spans([span for span in spans if span.trace_id == sampled.trace_id], sampled)
    assert {span.name for span in spans if span.trace_id == begun} >= {"quire.cell", "prefill"}
    check_step_spans(spans, sampled.trace_id)
    cancelled = [span for span in spans if span.attributes.get("error.type") == "CANCELLED"]
    assert [span.name for span in cancelled] == ["quire.v1.InferenceService/Generate"]
    assert cancelled[0].has_failed
    assert cancelled[0].attributes["gen_ai.response.finish_reasons"] == ["client_gone"]


async def cancel_one(client: AsyncClient, cluster: Cluster) -> None:
    """Cancel a request that cannot end before: its workers stand still until the router knows."""
    endless = SamplingParams(seed=1, max_tokens=900, ignore_eos=True)
    stream = client.stream(PROMPT, endless, request_id="cancelled")
    workers = [each.pid for each in cluster.services if each.name.startswith("worker")]
    async for event in stream:
        if isinstance(event, Delta):
            break
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        await stream.aclose()
        following = await until_id_is_free(client)
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
    async for _ in following:
        pass


async def until_id_is_free(client: AsyncClient) -> AsyncIterator[Event]:
    """Return a stream of the cancelled request's id, which the router has begun."""
    while True:
        stream = client.stream(PROMPT, PARAMS, request_id="cancelled")
        try:
            await anext(stream)
            return stream
        except RequestExistsError:
            await asyncio.sleep(0.01)


def check_request_spans(spans: list[ReceivedSpan], parent: TraceContext) -> None:
    """From the client's span to the phases in the cell, each the child of the one before."""
    by_name = {span.name: span for span in spans}
    request = by_name["quire.v1.InferenceService/Generate"]
    assert (request.service, request.parent_id) == ("quire-router", parent.span_id)
    assert not request.has_failed
    attributes = request.attributes
    assert attributes["gen_ai.request.model"] == "demo_model"
    assert attributes["gen_ai.usage.output_tokens"] == 12
    assert attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert 0 < float(str(attributes["gen_ai.server.time_to_first_token"])) < 60
    assert by_name["tokenize"].parent_id == request.span_id
    cell = by_name["quire.cell"]
    assert (cell.service, cell.parent_id) == ("quire-scheduler", request.span_id)
    phases = [by_name[name] for name in ("queued", "prefill", "decode")]
    assert {each.parent_id for each in phases} == {cell.span_id}
    for earlier, later in itertools.pairwise(phases):
        assert earlier.message.end_time_unix_nano == later.message.start_time_unix_nano
    for outer, inner in ((request, cell), (cell, phases[0]), (cell, phases[-1])):
        # Clocks of two processes of one machine, read to the microsecond.
        # Between the readings of two clocks a busy machine may do something else.
        slack = 50_000_000
        assert outer.message.start_time_unix_nano <= inner.message.start_time_unix_nano + slack
        assert inner.message.end_time_unix_nano <= outer.message.end_time_unix_nano + slack


def check_step_spans(spans: list[ReceivedSpan], trace_id: str) -> None:
    """Steps name the requests they were for; each has spans of both ranks."""
    steps = [s for s in spans if s.name == "quire.step" and trace_id in s.linked_traces]
    assert len(steps) >= 12, "one of prefill, eleven of decoding"
    for step in steps:
        ranks = [s for s in spans if s.parent_id == step.span_id]
        assert [rank.name for rank in ranks] == ["quire.worker.step"] * 2
        for rank in ranks:
            assert rank.attributes["quire.step.id"] == step.attributes["quire.step.id"]
            parts = {s.name for s in spans if s.parent_id == rank.span_id}
            assert parts == {"model", "sample"}


async def test_a_collector_that_is_gone_delays_no_request(
    start_cluster: StartCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    async with (
        start_cluster(log_level="info", otlp_endpoint="http://127.0.0.1:9") as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        answer = await client.generate(PROMPT, PARAMS)
        assert len(answer.token_ids) == 12
        await cluster.stop()
        statuses = {each.name: await each.wait() for each in cluster.services}
        assert statuses == dict.fromkeys(statuses, 0), "a service had to be killed"
        assert len(statuses) == 3
    log_lines(capfd.readouterr().err)


# ---------------------------------------------------------------- the canary

CANARY = "xyzzy-canary-8842"


async def ask_in_every_way(cluster: Cluster, client: AsyncClient) -> list[str]:
    """Requests with the canary in them: good, refused, malformed, and through crashes.

    Returns:
        The answers.
    """
    params = SamplingParams(
        seed=3,
        max_tokens=30,
        ignore_eos=True,
        stop=(f"{CANARY} stop",),
        bad_words=(f"{CANARY} bad",),
        logprobs=1,
    )
    answers = [(await client.generate(f"{CANARY} one", params, cache_salt=CANARY)).text]
    await client.tokenize(f"{CANARY} two")
    for prompt, options in (
        (f"{CANARY} three " * 2000, {}),
        (f"{CANARY} four", {"priority": 1000}),
        (f"{CANARY} five", {"cache_salt": f"{CANARY} " * 100}),
        (f"{CANARY} six", {"model": "another"}),
        (f"{CANARY} seven", {"timeout": 0.01}),
    ):
        with pytest.raises(QuireError) as caught:
            long = SamplingParams(seed=1, max_tokens=900, ignore_eos=True, stop=(CANARY,))
            await client.generate(prompt, long, **options)  # type: ignore[arg-type]
        assert CANARY not in caught.value.message
    assert CANARY not in await send_raw(cluster, f"\xff\xff{CANARY}".encode("latin-1"))
    request = inference_pb2.GenerateRequest(text=f"{CANARY} eight")
    assert CANARY not in await send_raw(cluster, request.SerializeToString()[:-3])

    for victim in ("worker 0", "scheduler"):
        service = next(each for each in cluster.services if each.name == victim)
        stream = client.stream(
            f"{CANARY} {victim}", SamplingParams(max_tokens=200, seed=4, ignore_eos=True)
        )
        texts = []
        async for event in stream:
            if isinstance(event, Delta):
                if not texts:
                    os.kill(service.pid, signal.SIGKILL)
                texts.append(event.text)
        answers.append("".join(texts))
    return answers


async def send_raw(cluster: Cluster, request: bytes) -> str:
    """Send bytes that are no request, and return the whole text of the error."""
    async with open_channel(cluster.router.address) as channel:
        call = channel.unary_stream("/quire.v1.InferenceService/Generate")(request)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    return f"{caught.value} {caught.value.trailing_metadata()}"


def pages(cluster: Cluster) -> str:
    """Everything that the admin ports of all services show."""
    found = []
    for service in cluster.services:
        host, _, port = service.admin_address.rpartition(":")
        for path in ("/metrics", "/metrics/vllm", "/livez", "/readyz"):
            connection = HTTPConnection(host, int(port), timeout=20)
            try:
                connection.request("GET", path)
                found.append(connection.getresponse().read().decode())
            finally:
                connection.close()
    return "\n".join(found)


# Takes half a minute: a worker and a scheduler are killed, one after the other, and come back.
async def test_no_log_metric_span_or_error_holds_a_word_of_prompt_or_answer(
    start_cluster: StartCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    collector: Collector
    with running_collector() as collector:
        async with (
            start_cluster(
                log_level="debug",
                otlp_endpoint=f"http://{collector.address}",
                admin_port=0,
            ) as cluster,
            AsyncClient(cluster.router.address) as client,
        ):
            answers = await ask_in_every_way(cluster, client)
            shown = await asyncio.to_thread(pages, cluster)
        spans = "\n".join(map(str, collector.requests))
    logs = capfd.readouterr().err
    assert "request_queued" in logs
    assert "quire_" in shown
    assert "gen_ai.usage.output_tokens" in spans
    for where, text in (("logs", logs), ("metrics", shown), ("spans", spans)):
        assert CANARY not in text, f"part of a prompt is in the {where}"
        for answer in answers:
            # Letters look the same in JSON and in the text of a protobuf message.
            words = max(re.findall(r"[A-Za-z ]+", answer), key=len)
            assert len(words) > 10, "the answer is too short to be searched for"
            assert words not in text, f"part of an answer is in the {where}"
