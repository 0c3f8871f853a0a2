"""A real router on a socket, with a fake scheduler: streams, tokens, clients."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from quire import Client, SamplingParams
from quire.contract.errors import (
    InvalidRequestError,
    ModelNotFoundError,
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
from tests.fakes.fake_scheduler import MODEL
from tests.rpc.router_setup import (
    BACKEND,
    PROMPT,
    PROMPT_IDS,
    TEXT_ID,
    echoed,
    running_router,
    text_of,
)


async def test_streams_started_deltas_finished(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        params = SamplingParams(max_tokens=50, seed=5)
        events = [e async for e in setup.client.stream(PROMPT, params, request_id="mine")]
        assert events[0] == Started("mine", len(PROMPT_IDS), 5, text_id=TEXT_ID, max_tokens=50)
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


@pytest.mark.parametrize("max_tokens", [None, MODEL.max_model_len, 10_000])
async def test_output_ends_at_the_models_length_at_last(tmp_path, max_tokens: int | None) -> None:
    async with running_router(tmp_path) as setup:
        completion = await setup.client.generate(PROMPT_IDS, SamplingParams(max_tokens=max_tokens))
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
        params = SamplingParams(skip_special_tokens=False)
        assert (await setup.client.generate(prompt, params)).text == "class"
        params = replace(params, include_stop_str_in_output=True)
        assert (await setup.client.generate(prompt, params)).text == "class</s>"


async def test_the_token_that_ends_a_text_is_no_part_of_it_unless_asked_for(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        prompt = BACKEND.encode("The list class").ids
        for is_included in (False, True):
            params = SamplingParams(
                stop_token_ids=(prompt[-1],), include_stop_str_in_output=is_included
            )
            completion = await setup.client.generate(prompt, params)
            assert completion.token_ids == tuple(prompt)
            assert completion.text == BACKEND.decode(prompt if is_included else prompt[:-1])


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
        assert await setup.client.list_models() == [replace(MODEL, text_id=TEXT_ID)]
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


async def test_reader_that_does_not_read_delays_no_other(tmp_path) -> None:
    """Its tokens are merged, not queued one by one; others go on, and it can be cancelled."""
    async with running_router(tmp_path) as setup:
        long = SamplingParams(ignore_eos=True, max_tokens=None)
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
            for _ in client.stream(PROMPT, SamplingParams(max_tokens=None), request_id="left"):
                break
            token_ids = client.tokenize("list")
            with pytest.raises(InvalidRequestError) as caught:
                client.generate("")
            assert caught.value.field == "prompt"
            with pytest.raises(ModelNotFoundError):
                client.generate("x", model="other")
            assert client.list_models() == [replace(MODEL, text_id=TEXT_ID)]
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
