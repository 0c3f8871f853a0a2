"""A stream that broke goes on at another router: nothing is repeated, nothing is lost."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from quire import AsyncClient, SamplingParams
from quire.contract.errors import (
    InvalidRequestError,
    NumericsDifferError,
    NumericsLostError,
    QuireError,
    RequestExistsError,
    SupersededError,
    TextDiffersError,
    UnavailableError,
)
from quire.contract.inputs import GenerateInput, ReceivedOutput, ResumeInput
from quire.contract.outputs import Completion, Delta, Event, Finished, FinishReason, Started
from quire.rpc import open_channel
from quire.rpc.call_errors import error_from_rpc
from quire.sdk.collect import Collector
from quire.sdk.resume import ResumableStream
from quire.v1 import inference_pb2_grpc, scheduler_pb2
from quire.wire.inference import (
    event_from_proto,
    generate_input_to_proto,
    resume_input_to_proto,
)
from tests.fakes.fake_scheduler import MODEL, FakeScheduler, running_scheduler
from tests.rpc.router_setup import BACKEND, TEXT_ID, echoed, read_all, router_for
from tests.rpc.test_cells import TOO_LARGE

PROMPT = tuple(BACKEND.encode("The list class 中文 😀").ids)
SEED = 77


def scattered(prompt: Sequence[int], seed: int, position: int) -> int:
    """Any token, half characters and ids without text among them."""
    return 2 + zlib.crc32(repr((tuple(prompt), seed, position)).encode()) % (MODEL.vocab_size // 2)


class Routers:
    """Two routers of one cell, called by the proto."""

    def __init__(self, fake: FakeScheduler, addresses: Sequence[str]) -> None:
        self.fake = fake
        self._channels = [open_channel(address) for address in addresses]
        self.stubs: list[Any] = [
            inference_pb2_grpc.InferenceServiceStub(each) for each in self._channels
        ]

    async def aclose(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def call(self, router: int, request: GenerateInput | ResumeInput) -> AsyncIterator[Event]:
        stub = self.stubs[router]
        if isinstance(request, ResumeInput):
            call = stub.Resume(resume_input_to_proto(request))
        else:
            call = stub.Generate(generate_input_to_proto(request))
        try:
            async for response in call:
                yield event_from_proto(response)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
        finally:
            call.cancel()

    async def read(self, router: int, request: GenerateInput | ResumeInput) -> list[Event]:
        return await read_all(self.call(router, request))


@asynccontextmanager
async def two_routers(tmp_path: Path, fake: FakeScheduler | None = None) -> AsyncIterator[Routers]:
    fake = fake or FakeScheduler(scattered, replace(MODEL, numerics_id="5f7a"))
    async with (
        running_scheduler(fake) as scheduler,
        router_for(tmp_path, (scheduler,)) as (first, _, address),
        router_for(tmp_path, (scheduler,)) as (second, _, other),
    ):
        await asyncio.gather(first.wait_until_serving(), second.wait_until_serving())
        async with aclosing(Routers(fake, (address, other))) as routers:
            yield routers


def completion_of(events: Sequence[Event]) -> Completion:
    collector = Collector()
    for event in events:
        collector.add(event)
    return replace(collector.completions()[0], request_id="")


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=40),
        SamplingParams(max_tokens=40, stop=("zz", "he", "\ufffd\ufffd\ufffd")),
        SamplingParams(max_tokens=40, stop=("qqqqqqqqq",), min_tokens=4),
        SamplingParams(stop_token_ids=(scattered(PROMPT, SEED, 30),), seed=SEED),
    ],
)
async def test_cut_anywhere_a_stream_goes_on_at_another_router(tmp_path, params) -> None:
    request = GenerateInput(PROMPT, params)
    async with two_routers(tmp_path) as routers:
        whole = completion_of(await routers.read(0, request))
        for num_events in range(1, len(whole.token_ids) + 4):
            stream = ResumableStream(request, 2, 60.0)
            events: list[Event] = []
            async with aclosing(routers.call(0, request)) as first:
                async for event in first:
                    assert stream.take(event)
                    events.append(event)
                    if len(events) == num_events:
                        break
            if not stream.is_complete:
                rest = await routers.read(1, stream.request)
                assert isinstance(rest[0], Started)
                events += [event for event in rest if stream.take(event)]
            assert stream.is_complete
            assert completion_of(events) == whole, num_events


async def test_a_resumed_request_is_submitted_with_what_was_received(tmp_path) -> None:
    async with two_routers(tmp_path, FakeScheduler()) as routers:
        first, rest = echoed(3, PROMPT), echoed(6, PROMPT)[3:]
        num_bytes = len(BACKEND.decode(list(first)).encode())
        resumed = resume(max_tokens=6, token_ids=first, num_text_bytes=num_bytes, numerics_id="")
        events = await routers.read(1, resumed)
        assert events[0] == Started("mine", len(PROMPT), SEED, "", TEXT_ID, (), 6)
        assert sum((e.token_ids for e in events if isinstance(e, Delta)), ()) == rest
        assert events[-1] == Finished(FinishReason.LENGTH, 6)
        submitted = routers.fake.submitted[-1]
        assert (submitted.num_resumed, submitted.params.seed) == (3, SEED)


async def test_what_is_resumed_has_begun_for_cells_too(tmp_path) -> None:
    """It waits where the queue is full; that it ran before is a claim, so it is charged."""
    full = scheduler_pb2.Refused(
        reason=scheduler_pb2.REFUSAL_REASON_QUEUE_FULL, message="7 wait", retry_after_ms=1
    )
    async with two_routers(tmp_path, FakeScheduler()) as routers:
        await routers.read(0, GenerateInput(PROMPT, SamplingParams(max_tokens=2)))
        routers.fake.refuse_next(full)
        events = await routers.read(1, resume(numerics_id=""))
        assert events[-1] == Finished(FinishReason.LENGTH, 8)
        assert [each.was_queued for each in routers.fake.submitted] == [False, False]


async def test_what_is_resumed_waits_for_a_cell_where_it_fits(tmp_path) -> None:
    short = FakeScheduler(model=replace(MODEL, max_model_len=len(PROMPT) + 7))
    async with running_scheduler(FakeScheduler()) as address:
        port = int(address.rpartition(":")[2])
    async with (
        running_scheduler(short) as scheduler,
        router_for(tmp_path, (scheduler, address), recovery_timeout_s=0.1) as (router, _, at),
        router_for(tmp_path, (scheduler, address)) as (patient, _, other),
        aclosing(Routers(short, (at, other))) as routers,
    ):
        await asyncio.gather(router.wait_until_serving(), patient.wait_until_serving())
        longest = rf"max_model_len of {len(PROMPT) + 8} or more"
        with pytest.raises(NumericsLostError, match=longest):
            await routers.read(0, resume(numerics_id=""))
        waiting = asyncio.create_task(routers.read(1, resume(numerics_id="")))
        async with running_scheduler(FakeScheduler(), port):
            assert (await waiting)[-1] == Finished(FinishReason.LENGTH, 8)
        assert not short.submitted


@pytest.mark.parametrize("comes", ["again", "late"])
async def test_what_is_too_large_waits_for_a_cell_that_connects(tmp_path, comes) -> None:
    """The one that refused it, which may come back larger, or one that was not there yet."""
    fakes = {"again": FakeScheduler(), "late": FakeScheduler()}
    async with running_scheduler(fakes["late"]) as late:
        port = int(late.rpartition(":")[2])
    async with (
        running_scheduler(fakes["again"]) as again,
        router_for(tmp_path, (again, late)) as (router, _, address),
        aclosing(Routers(fakes["again"], (address,))) as routers,
    ):
        await router.wait_until_serving()
        fakes["again"].refuse_next(TOO_LARGE)
        waiting = asyncio.create_task(routers.read(0, resume(numerics_id="")))
        await fakes["again"].until(lambda: fakes["again"].num_refused == 1)
        async with AsyncExitStack() as stack:
            if comes == "late":
                await stack.enter_async_context(running_scheduler(fakes["late"], port))
            else:
                fakes["again"].drop_sessions()
            assert (await waiting)[-1] == Finished(FinishReason.LENGTH, 8)
        assert [len(fakes[each].submitted) for each in fakes] == [comes == "again", comes == "late"]


async def test_only_the_end_is_left_to_send(tmp_path) -> None:
    """The cell is not asked."""
    async with two_routers(tmp_path, FakeScheduler()) as routers:
        tokens = echoed(6, PROMPT)
        num_bytes = len(BACKEND.decode(list(tokens)).encode())
        resumed = resume(max_tokens=6, token_ids=tokens, num_text_bytes=num_bytes, numerics_id="")
        events = await routers.read(1, resumed)
        assert isinstance(events[0], Started)
        assert events[1:] == [Finished(FinishReason.LENGTH, 6)]
        assert not routers.fake.submitted


async def test_started_brings_the_prompt_when_asked(tmp_path) -> None:
    request = GenerateInput(PROMPT, SamplingParams(max_tokens=2), include_prompt_token_ids=True)
    async with two_routers(tmp_path) as routers:
        started = (await routers.read(0, request))[0]
    assert isinstance(started, Started)
    assert (started.prompt_token_ids, started.max_tokens) == (PROMPT, 2)


def resume(
    numerics_id: str = "5f7a",
    text_id: str = TEXT_ID,
    seed: int | None = SEED,
    request_id: str = "mine",
    index: int = 0,
    token_ids: tuple[int, ...] = (),
    num_text_bytes: int = 0,
    ended: bool = False,
    num_prompt_logprobs: int = 0,
    cumulative_logprob: float | None = None,
    times: int = 1,
    **params: Any,
) -> ResumeInput:
    output = ReceivedOutput(index, token_ids, num_text_bytes, ended, cumulative_logprob)
    given = SamplingParams(**{"max_tokens": 8, **params})
    return ResumeInput(
        GenerateInput(PROMPT, given, request_id),
        seed,
        numerics_id,
        text_id,
        (output,) * times,
        num_prompt_logprobs,
    )


HE = tuple(BACKEND.encode("he").ids)


@pytest.mark.parametrize(
    ("resumed", "kind", "message"),
    [
        (resume(numerics_id="0bad"), NumericsDifferError, "numerics_id: .*5f7a.*got 0bad"),
        (resume(numerics_id=""), NumericsDifferError, "numerics_id: .*5f7a.*got none"),
        (resume(text_id="0bad"), TextDiffersError, f"text_id: must be {TEXT_ID}, got 0bad"),
        (resume(seed=None), InvalidRequestError, "seed: .*got none"),
        (resume(request_id=""), InvalidRequestError, "request_id: .*got none"),
        (resume(index=1), InvalidRequestError, r"received\[0\].index: .*n \(1\), got 1"),
        (resume(times=2, n=2), InvalidRequestError, r"received\[1\].index: .*got 0 twice"),
        (resume(token_ids=(5,) * 9), InvalidRequestError, r"token_ids: .*\(8\), got 9"),
        (resume(token_ids=(1000,)), InvalidRequestError, "token_ids: .*1000.*got 1000"),
        (resume(token_ids=(1, 5)), InvalidRequestError, "token_ids: .*ends the output.*got 1"),
        (
            resume(token_ids=(7, 5), stop_token_ids=(7,)),
            InvalidRequestError,
            "token_ids: .*ends the output.*got 7",
        ),
        (
            resume(token_ids=(*HE, *HE), num_text_bytes=0, stop=("he",)),
            InvalidRequestError,
            "stop string before its end, got one after 2 tokens",
        ),
        (
            resume(token_ids=HE, num_text_bytes=1),
            InvalidRequestError,
            "text must be of 2 bytes, .*got 1",
        ),
        (
            resume(token_ids=HE, num_text_bytes=3),
            InvalidRequestError,
            "within 2 bytes, got 3",
        ),
        (resume(ended=True), InvalidRequestError, "received: .*got all 1 as ended"),
        (resume(num_prompt_logprobs=1), InvalidRequestError, "at most 0, got 1"),
        (
            resume(token_ids=HE, num_text_bytes=2, logprobs=1),
            InvalidRequestError,
            "cumulative_logprob: must be given.*got none",
        ),
        (
            resume(token_ids=HE, num_text_bytes=2, logprobs=1, cumulative_logprob=float("nan")),
            InvalidRequestError,
            "cumulative_logprob: must be finite, got nan",
        ),
    ],
)
async def test_what_no_stream_can_have_brought_is_refused(tmp_path, resumed, kind, message) -> None:
    async with two_routers(tmp_path) as routers:
        with pytest.raises(QuireError, match=message) as caught:
            await routers.read(0, resumed)
        assert type(caught.value) is kind
        assert not routers.fake.submitted


async def test_a_newer_stream_ends_the_older_one(tmp_path) -> None:
    request = GenerateInput(PROMPT, SamplingParams(max_tokens=8), "mine")
    async with two_routers(tmp_path) as routers:
        routers.fake.hold()
        stream = ResumableStream(request, 2, 60.0)
        async with aclosing(routers.call(0, request)) as older:
            stream.take(await anext(older))
            await routers.fake.step()
            stream.take(await anext(older))
            stranger = replace(stream.request, seed=SEED + 1)
            with pytest.raises(RequestExistsError):
                await routers.read(0, stranger)
            async with aclosing(routers.call(0, stream.request)) as newer:
                assert isinstance(await anext(newer), Started)
                with pytest.raises(SupersededError, match="mine was resumed"):
                    await anext(older)
                await routers.fake.release()
                rest = [event async for event in newer if stream.take(event)]
        assert stream.is_complete
        assert sum(len(each.token_ids) for each in rest if isinstance(each, Delta)) == 7


@pytest.mark.parametrize("resume_timeout", [0.0, 60.0])
async def test_a_client_waits_for_a_router_that_starts_again(tmp_path, resume_timeout) -> None:
    """The very port, as `quire serve` has it; without a limit the error comes at once."""
    fake = FakeScheduler(scattered)
    params = SamplingParams(max_tokens=40, seed=SEED, logprobs=None)
    async with running_scheduler(fake) as scheduler, AsyncExitStack() as stack:
        first = AsyncExitStack()
        router, whole_client, address = await first.enter_async_context(
            router_for(tmp_path, (scheduler,))
        )
        await router.wait_until_serving()
        whole = await whole_client.generate(PROMPT, params)
        client = await stack.enter_async_context(
            AsyncClient(address, resume_timeout=resume_timeout)
        )
        fake.hold()
        collector = Collector()
        async with aclosing(client.stream(PROMPT, params)) as stream:
            collector.add(await anext(stream))
            await fake.step()
            collector.add(await anext(stream))
            await first.aclose()
            if resume_timeout:
                port = int(address.rpartition(":")[2])
                await stack.enter_async_context(router_for(tmp_path, (scheduler,), port=port))
                await fake.release()
                async for event in stream:
                    collector.add(event)
                completion = replace(collector.completions()[0], request_id=whole.request_id)
                assert completion == whole
            else:
                with pytest.raises(UnavailableError):
                    await anext(stream)
