"""A real router on a socket, with a fake scheduler: requests, streams, refusals."""

import asyncio
import math
from contextlib import aclosing

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from quire import AsyncClient, Client, SamplingParams
from quire.contract.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    RequestExistsError,
    UnavailableError,
)
from quire.contract.outputs import (
    CellState,
    Completion,
    Delta,
    Event,
    Finished,
    FinishReason,
    Started,
)
from quire.rpc import open_channel
from quire.v1 import common_pb2, inference_pb2, inference_pb2_grpc, scheduler_pb2
from router.text.tokenize import Tokenizer
from tests.fakes.fake_scheduler import MODEL
from tests.fakes.small_tokenizers import byte_level
from tests.rpc.router_setup import BACKEND, read_all, running_router

PROMPT = "The list class has methods 中文 😀 to sort"
PROMPT_IDS = tuple(BACKEND.encode(PROMPT).ids)
GENERATE = "/quire.v1.InferenceService/Generate"


def echoed(count: int, prompt: tuple[int, ...] = PROMPT_IDS) -> tuple[int, ...]:
    """What the fake answers."""
    return tuple(prompt[i % len(prompt)] for i in range(count))


def text_of(token_ids: tuple[int, ...]) -> str:
    return BACKEND.decode(list(token_ids))


async def test_streams_started_deltas_finished(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        params = SamplingParams(max_tokens=50, seed=5)
        events = [e async for e in setup.client.stream(PROMPT, params, request_id="mine")]
        assert events[0] == Started("mine", len(PROMPT_IDS), 5)
        assert events[-1] == Finished(FinishReason.LENGTH, 50)
        deltas = events[1:-1]
        assert all(isinstance(delta, Delta) for delta in deltas)
        assert sum((d.token_ids for d in deltas), ()) == echoed(50)
        assert "".join(d.text for d in deltas) == text_of(echoed(50))
        submitted = setup.fake.submitted[0]
        assert submitted.prompt == PROMPT_IDS
        assert submitted.request_id == "mine"
        assert submitted.params.max_tokens == 50


async def test_text_and_token_ids_are_the_same_prompt(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        params = SamplingParams(max_tokens=7)
        from_text = await setup.client.generate(PROMPT, params)
        from_ids = await setup.client.generate(PROMPT_IDS, params)
        assert from_text.token_ids == from_ids.token_ids == echoed(7)
        assert from_text.text == from_ids.text
        assert from_text.seed == 77
        assert from_text.request_id != from_ids.request_id


async def test_output_without_max_tokens_ends_at_the_models_length(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        completion = await setup.client.generate(PROMPT_IDS)
        assert len(completion.token_ids) == MODEL.max_model_len - len(PROMPT_IDS)
        assert completion.finish_reason is FinishReason.LENGTH


async def test_thirty_two_at_once_each_get_their_own(tmp_path) -> None:
    prompts = [tuple(range(10 + i, 20 + 2 * i)) for i in range(32)]
    async with running_router(tmp_path) as setup:
        params = SamplingParams(max_tokens=60, ignore_eos=True)
        completions = await asyncio.gather(*(setup.client.generate(p, params) for p in prompts))
        for prompt, completion in zip(prompts, completions, strict=True):
            assert completion.token_ids == echoed(60, prompt)
        assert setup.fake.num_sessions == 1


async def test_end_of_text_is_a_token_without_text(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        prompt = (*BACKEND.encode("class").ids, 1)
        completion = await setup.client.generate(prompt)
        assert completion.token_ids == prompt
        assert completion.text == "class"
        assert completion.finish_reason is FinishReason.STOP
        shown = await setup.client.generate(prompt, SamplingParams(skip_special_tokens=False))
        assert shown.text == "class</s>"


@pytest.mark.parametrize("include", [False, True])
async def test_stop_string_ends_the_request_here_and_in_the_scheduler(tmp_path, include) -> None:
    async with running_router(tmp_path) as setup:
        params = SamplingParams(
            stop=("no such text", "methods 中文"), include_stop_str_in_output=include
        )
        setup.fake.hold()
        stream = setup.client.stream(PROMPT, params, request_id="stopped")
        reading = asyncio.create_task(read_all(stream))
        await setup.fake.until(lambda: setup.fake.num_running() == 1)
        # More than it takes: the scheduler runs ahead, what it samples meanwhile is dropped.
        await setup.fake.step(len(PROMPT_IDS))
        events = await reading
        text = "".join(e.text for e in events if isinstance(e, Delta))
        token_ids = sum((e.token_ids for e in events if isinstance(e, Delta)), ())
        assert text == "The list class has " + ("methods 中文" if include else "")
        # The tokens up to and including the one that completed it.
        assert token_ids == echoed(len(token_ids))
        assert "methods 中文" in text_of(token_ids)
        assert "methods 中文" not in text_of(token_ids[:-1])
        assert events[-1] == Finished(FinishReason.STOP, len(token_ids), "methods 中文")
        await setup.fake.until(lambda: setup.fake.cancelled == ["stopped"])
        assert setup.fake.num_running() == 0


async def test_text_that_may_be_a_stop_string_waits(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        prompt = tuple(BACKEND.encode("abcdef").ids)
        params = SamplingParams(stop=("cdx",), max_tokens=len(prompt))
        async with aclosing(setup.client.stream(prompt, params)) as stream:
            assert isinstance(await anext(stream), Started)
            text = ""
            for count in range(1, len(prompt)):
                await setup.fake.step()
                event = await anext(stream)
                assert event.token_ids == (prompt[count - 1],)
                text += event.text
                seen = BACKEND.decode(list(prompt[:count]))
                held = next((h for h in ("cd", "c") if seen.endswith(h)), "")
                assert text == seen[: len(seen) - len(held)]


async def test_leaving_a_stream_frees_the_scheduler(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        async with aclosing(setup.client.stream(PROMPT, request_id="left")) as stream:
            assert isinstance(await anext(stream), Started)
            await setup.fake.step()
            assert isinstance(await anext(stream), Delta)
        await setup.fake.until(lambda: setup.fake.cancelled == ["left"])
        # Its id is free again.
        await setup.fake.release()
        await setup.client.generate(PROMPT, SamplingParams(max_tokens=1), request_id="left")


async def test_cancelled_task_frees_the_scheduler(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        tasks = [
            asyncio.create_task(setup.client.generate(PROMPT, request_id=f"task {i}"))
            for i in range(8)
        ]
        await setup.fake.until(lambda: setup.fake.num_running() == 8)
        for task in tasks[:4]:
            task.cancel()
        await setup.fake.until(lambda: len(setup.fake.cancelled) == 4)
        assert sorted(setup.fake.cancelled) == [f"task {i}" for i in range(4)]
        await setup.fake.release()
        for completion in await asyncio.gather(*tasks[4:]):
            assert completion.finish_reason is FinishReason.LENGTH


async def test_deadline_frees_the_scheduler(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        with pytest.raises(DeadlineExceededError):
            await setup.client.generate(PROMPT, request_id="late", timeout=0.2)
        await setup.fake.until(lambda: setup.fake.cancelled == ["late"])


async def test_abort_finishes_the_stream(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        task = asyncio.create_task(setup.client.generate(PROMPT, request_id="mine"))
        await setup.fake.until(lambda: setup.fake.num_running() == 1)
        await setup.fake.step(3)
        assert await setup.client.abort("mine")
        completion = await task
        assert completion.finish_reason is FinishReason.ABORT
        assert completion.token_ids == echoed(len(completion.token_ids))
        await setup.fake.until(lambda: setup.fake.cancelled == ["mine"])
        assert not await setup.client.abort("mine")


async def test_id_in_use_is_refused(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        task = asyncio.create_task(setup.client.generate(PROMPT, request_id="mine"))
        await setup.fake.until(lambda: setup.fake.num_running() == 1)
        with pytest.raises(RequestExistsError, match="mine"):
            await setup.client.generate(PROMPT, request_id="mine")
        await setup.fake.release()
        assert (await task).finish_reason is FinishReason.LENGTH


async def test_refusals_of_the_scheduler_reach_the_client(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.refuse_next(
            scheduler_pb2.Refused(
                reason=scheduler_pb2.REFUSAL_REASON_QUEUE_FULL,
                message="at most 7 requests wait",
                retry_after_ms=1500,
            )
        )
        with pytest.raises(OverloadedError, match="at most 7") as full:
            await setup.client.generate(PROMPT)
        assert full.value.retry_after_ms == 1500
        setup.fake.refuse_next(
            scheduler_pb2.Refused(
                reason=scheduler_pb2.REFUSAL_REASON_INVALID,
                field="prompt",
                message="at most 64 tokens fit the cache, got 99",
            )
        )
        with pytest.raises(InvalidRequestError) as invalid:
            await setup.client.generate(PROMPT)
        assert invalid.value.field == "prompt"
        assert invalid.value.description == "at most 64 tokens fit the cache, got 99"
        assert (await setup.client.generate(PROMPT)).finish_reason is FinishReason.LENGTH


def raw(text: str = "x", **params: object) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        text=text, sampling_params=common_pb2.SamplingParams(**params)
    )


BAD_REQUESTS = {
    "empty text": (raw(""), "prompt", "0"),
    "no prompt": (inference_pb2.GenerateRequest(), "prompt", "0"),
    "too long": (raw("word " * 400), "prompt", "255"),
    "over 1 MiB": (raw("x" * (2**20 + 1)), "prompt", str(2**20)),
    "out of vocabulary": (
        inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=[1000])),
        "prompt",
        "1000",
    ),
    "NaN": (raw(temperature=math.nan), "temperature", "nan"),
    "negative": (raw(temperature=-0.5), "temperature", "-0.5"),
    "top_k 0": (raw(top_k=0), "top_k", "0"),
    "max_tokens 0": (raw(max_tokens=0), "max_tokens", "0"),
    "max_tokens absurd": (raw(max_tokens=2**32 - 1), "max_tokens", str(2**32 - 1)),
    "max_tokens beyond the model": (raw(max_tokens=257), "max_tokens", "256"),
    "stop token out of vocabulary": (raw(stop_token_ids=[1000]), "stop_token_ids", "1000"),
    "empty stop string": (raw(stop=[""]), "stop", "256"),
    "stop strings too many": (raw(stop=["x"] * 17), "stop", "16"),
}


async def test_bad_requests_name_field_and_limit_and_disturb_nobody(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        bystander = asyncio.create_task(
            setup.client.generate(PROMPT, SamplingParams(max_tokens=200))
        )
        await setup.fake.until(lambda: setup.fake.num_running() == 1)
        async with open_channel(setup.address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            for name, (request, field, limit) in BAD_REQUESTS.items():
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    async for _ in stub.Generate(request):
                        pytest.fail(f"{name}: was answered")
                assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, name
                status = rpc_status.from_call(caught.value)
                assert status is not None
                bad_request = error_details_pb2.BadRequest()
                assert any(detail.Unpack(bad_request) for detail in status.details), name
                violation = bad_request.field_violations[0]
                assert violation.field == field, name
                assert limit in violation.description, f"{name}: {violation.description}"
                await setup.fake.step()

            malformed = channel.unary_stream(GENERATE)
            for junk in (b"\xff" * 20, b"\x08", b"\x1a\x05ab", b"\x1a\x02\xff\xfe"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    async for _ in malformed(junk):
                        pytest.fail("a malformed message was answered")
                assert caught.value.code() == grpc.StatusCode.INTERNAL
                await setup.fake.step()

        with pytest.raises(ModelNotFoundError, match=r"gpt-17.*served: fake"):
            await setup.client.generate(PROMPT, model="gpt-17")
        with pytest.raises(InvalidRequestError, match="larger"):
            await setup.client.generate("x" * (8 * 2**20))
        with pytest.raises(InvalidRequestError, match="-1"):
            await setup.client.generate([3, -1])
        await setup.fake.release()
        assert (await bystander).token_ids == echoed(200)
        assert len(setup.fake.submitted) == 1


async def test_one_mebibyte_is_refused_without_delaying_a_stream(tmp_path) -> None:
    """Exactly the limit: it is tokenized, in a thread, and refused by its tokens."""
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        async with aclosing(setup.client.stream(PROMPT)) as stream:
            assert isinstance(await anext(stream), Started)
            big = asyncio.create_task(setup.client.generate("word " * (2**20 // 5)))
            steps_meanwhile = 0
            while not big.done() and steps_meanwhile < 200:
                await setup.fake.step()
                assert isinstance(await anext(stream), Delta)
                steps_meanwhile += 1
            with pytest.raises(InvalidRequestError, match="at most 255 tokens"):
                await big
            assert steps_meanwhile > 3


async def test_texts_waiting_for_the_tokenizer_are_bounded(tmp_path) -> None:
    async with running_router(tmp_path, max_queued_texts=2) as setup:
        tokenizer = Tokenizer(byte_level(), num_threads=1, max_queued=2)
        calls = [tokenizer.encode("word " * 10_000) for _ in range(5)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        tokenizer.close()
        assert [isinstance(r, OverloadedError) for r in results] == [False] * 2 + [True] * 3
        assert await setup.client.tokenize("word")


async def test_tokenize_and_detokenize(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        assert await setup.client.tokenize(PROMPT) == list(PROMPT_IDS)
        assert await setup.client.detokenize(PROMPT_IDS) == PROMPT
        assert await setup.client.detokenize([0, *PROMPT_IDS], skip_special_tokens=False) == (
            "<s>" + PROMPT
        )
        assert await setup.client.tokenize("") == []
        assert await setup.client.detokenize([]) == ""
        with pytest.raises(InvalidRequestError, match="text: at most 1048576 bytes"):
            await setup.client.tokenize("x" * (2**20 + 1))
        with pytest.raises(InvalidRequestError, match=r"token_ids: .*got 1000"):
            await setup.client.detokenize([1000])
        with pytest.raises(ModelNotFoundError, match="other"):
            await setup.client.tokenize("x", model="other")


async def test_models_and_cluster_state(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        assert await setup.client.list_models() == [MODEL]
        async with aclosing(setup.client.watch_cluster()) as watch:
            (cell,) = await anext(watch)
            assert (cell.address, cell.connected, cell.model) == (setup.scheduler, True, MODEL)
            reported = CellState(epoch=1, num_running=3, num_blocks=10, num_free_blocks=4)
            await setup.fake.send_state(reported)
            async for (cell,) in watch:
                if cell.state == reported:
                    break


async def test_health_and_reflection(tmp_path) -> None:
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "quire.v1.InferenceService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = reflection.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        call.cancel()
        names = [service.name for service in answer.list_services_response.service]
        assert "quire.v1.InferenceService" in names


async def test_reader_that_does_not_read_holds_up_nobody(tmp_path) -> None:
    """Its tokens are merged, not queued one by one; others go on, and it can be cancelled."""
    async with running_router(tmp_path) as setup:
        long = SamplingParams(ignore_eos=True)
        async with aclosing(setup.client.stream((7, 8), long, request_id="slow")) as slow:
            assert isinstance(await anext(slow), Started)
            for _ in range(3):
                completion = await setup.client.generate(PROMPT, SamplingParams(max_tokens=20))
                assert completion.token_ids == echoed(20)
            rest = [event async for event in slow]
        token_ids = sum((e.token_ids for e in rest if isinstance(e, Delta)), ())
        assert token_ids == echoed(MODEL.max_model_len - 2, (7, 8))


async def test_synchronous_client(tmp_path) -> None:
    def use(address: str) -> tuple[Completion, list[Event], str]:
        with Client(address) as client:
            completion = client.generate(PROMPT, SamplingParams(max_tokens=9, seed=3))
            events = list(client.stream(PROMPT, SamplingParams(max_tokens=9, seed=3)))
            for _ in client.stream(PROMPT, request_id="left"):
                break
            token_ids = client.tokenize("list")
            with pytest.raises(InvalidRequestError) as caught:
                client.generate("")
            assert caught.value.field == "prompt"
            with pytest.raises(ModelNotFoundError):
                client.generate("x", model="other")
            assert client.list_models() == [MODEL]
            assert not client.abort("no such request")
            for (cell,) in client.watch_cluster():
                assert cell.connected
                break
            return completion, events, client.detokenize(token_ids)

    async with running_router(tmp_path) as setup:
        completion, events, text = await asyncio.to_thread(use, setup.address)
        assert completion.token_ids == echoed(9)
        assert completion.text == text_of(echoed(9))
        assert isinstance(events[0], Started)
        assert isinstance(events[-1], Finished)
        assert text == "list"
        await setup.fake.until(lambda: setup.fake.num_running() == 0)


async def test_no_router_is_unavailable() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(UnavailableError):
            await client.generate("x")
    with Client("127.0.0.1:1") as client, pytest.raises(UnavailableError):
        client.generate("x")
