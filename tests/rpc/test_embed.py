"""Embed of a real router before a fake scheduler: one vector for each input, whatever happens."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from quire import AsyncClient
from quire.contract.embeddings import MAX_INPUTS, vector_of
from quire.contract.errors import (
    AbortedError,
    InvalidRequestError,
    ModelNotFoundError,
)
from quire.contract.outputs import FinishReason
from quire.contract.pooling_params import PoolingParams
from quire.v1 import scheduler_pb2
from router.requests import embeddings
from router.requests.patience import MAX_AT_ONCE
from tests.fakes.fake_model import fake_vector
from tests.fakes.fake_scheduler import MODEL, FakeScheduler
from tests.fakes.fake_scheduler import running_scheduler as running_fake
from tests.fakes.previous_release import SpeaksPreviousRelease
from tests.rpc.router_setup import (
    BACKEND,
    PROMPT,
    PROMPT_IDS,
    router_for,
    running_router,
    until_late,
)

TEXTS = [PROMPT, "x", "another text"]
TOKENS = [tuple(BACKEND.encode(text).ids) for text in TEXTS]


def expected(*prompts: tuple[int, ...], normalize: bool = True) -> list[bytes]:
    return [fake_vector(each, PoolingParams(normalize)) for each in prompts]


@pytest.mark.parametrize("normalize", [True, False])
async def test_a_vector_for_each_input_in_their_order(tmp_path: Path, normalize: bool) -> None:
    async with running_router(tmp_path) as setup:
        found = await setup.client.embed(TEXTS, normalize=normalize, request_id="mine")
        wanted = expected(*TOKENS, normalize=normalize)
        assert [each.tobytes() for each in found.vectors] == wanted
        assert found.num_prompt_tokens == tuple(map(len, TOKENS))
        assert (found.request_id, found.model, found.prompt_token_ids) == ("mine", "fake", ())
        assert setup.fake.submitted[0].request_id == "mine"
        assert all(each.request_id.startswith("mine") for each in setup.fake.submitted)
        same = await setup.client.embed(
            TOKENS, normalize=normalize, include_prompt_token_ids=True, priority=3
        )
        assert same.vectors == found.vectors
        assert same.prompt_token_ids == tuple(TOKENS)


async def test_one_input_of_each_kind(tmp_path: Path) -> None:
    async with running_router(tmp_path) as setup:
        for prompt in (PROMPT, list(PROMPT_IDS), [PROMPT], [list(PROMPT_IDS)]):
            [vector] = (await setup.client.embed(prompt)).vectors
            assert vector.tobytes() == expected(PROMPT_IDS)[0]


async def test_the_last_tokens_of_each(tmp_path: Path) -> None:
    async with running_router(tmp_path) as setup:
        found = await setup.client.embed(TEXTS, truncate_prompt_tokens=2)
        assert [each.tobytes() for each in found.vectors] == expected(*(ids[-2:] for ids in TOKENS))
        assert found.num_prompt_tokens == tuple(min(2, len(ids)) for ids in TOKENS)
        # As many as the model takes.
        found = await setup.client.embed([[7] * 300, [5]], truncate_prompt_tokens=-1)
        assert found.num_prompt_tokens == (MODEL.max_model_len, 1)


async def test_no_more_than_a_few_are_with_the_cell_at_once(tmp_path: Path) -> None:
    fake = FakeScheduler()
    fake.hold()
    async with running_router(tmp_path, fake) as setup:
        prompts = [[5, 6, place + 7] for place in range(3 * MAX_AT_ONCE)]
        task = asyncio.create_task(setup.client.embed(prompts))
        await fake.until(lambda: len(fake.submitted) == MAX_AT_ONCE)
        await fake.release()
        found = await task
        assert [each.tobytes() for each in found.vectors] == expected(*map(tuple, prompts))


async def test_a_lost_scheduler_changes_no_bit(tmp_path: Path) -> None:
    fake = FakeScheduler()
    fake.hold()
    async with running_router(tmp_path, fake) as setup:
        prompts = [[5, 6, place + 7] for place in range(8)]
        task = asyncio.create_task(setup.client.embed(prompts))
        await fake.until(lambda: len(fake.submitted) == 8)
        fake.drop_sessions()
        await fake.until(lambda: len(fake.submitted) == 16)
        await fake.release()
        found = await task
        assert [each.tobytes() for each in found.vectors] == expected(*map(tuple, prompts))
        again = [list(each.prompt) for each in fake.submitted[8:]]
        assert sorted(again) == prompts


async def test_a_prompt_of_the_models_whole_length_goes_on_elsewhere(tmp_path: Path) -> None:
    """It needs no room for a token behind it, where it is continued either."""
    fake = FakeScheduler()
    fake.hold()
    async with running_router(tmp_path, fake) as setup:
        prompt = [7] * MODEL.max_model_len
        task = asyncio.create_task(setup.client.embed(prompt))
        await fake.until(lambda: len(fake.submitted) == 1)
        fake.drop_sessions()
        await fake.until(lambda: len(fake.submitted) == 2)
        await fake.release()
        assert (await task).num_prompt_tokens == (MODEL.max_model_len,)
        with pytest.raises(
            InvalidRequestError, match=r"inputs\[1\]: must be at most 256 tokens, got 257"
        ):
            await setup.client.embed([[5], [7] * (MODEL.max_model_len + 1)])


REFUSED = [
    ([], {}, "inputs: must have 1 to 2048 items, got 0"),
    (["x"] * (MAX_INPUTS + 1), {}, "inputs: must have 1 to 2048 items, got 2049"),
    (["x", ""], {}, r"inputs\[1\]: at least 1 token, got 0"),
    ([[5], [1000]], {}, r"inputs\[1\]: token ids must be in \[0, 1000\), got 1000"),
    (["x"], {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens: must be in"),
    (["x"], {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens: must be in .* or -1, got -2"),
    (["x"], {"priority": 101}, "priority: must be in"),
    (["x"], {"priority": 2**40}, "priority: must be in"),
    (["x"], {"cache_salt": "s" * 257}, "cache_salt: at most 256"),
    (["x"], {"request_id": "r" * 129}, "request_id: at most 128"),
]


@pytest.mark.parametrize(("prompts", "options", "words"), REFUSED)
async def test_what_is_out_of_bounds_is_refused_by_name(
    tmp_path: Path, prompts: list, options: dict, words: str
) -> None:
    async with running_router(tmp_path) as setup:
        with pytest.raises(InvalidRequestError, match=words):
            await setup.client.embed(prompts, **options)
        assert len(setup.fake.submitted) <= 1, "at most the first, which is well"
        with pytest.raises(ModelNotFoundError):
            await setup.client.embed("x", model="another")


async def test_vectors_that_no_message_holds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "MAX_VECTOR_BYTES", 3 * 4 * MODEL.embedding_size)
    async with running_router(tmp_path) as setup:
        await setup.client.embed(TEXTS)
        with pytest.raises(InvalidRequestError, match=r"inputs\[3\]: must be one of at most 3 "):
            await setup.client.embed([*TEXTS, "x"])
    # Also of the first call, which comes before the cell is connected.
    fake = FakeScheduler(model=replace(MODEL, is_matryoshka=True))
    async with (
        running_fake(fake) as scheduler,
        router_for(tmp_path, (scheduler,)) as (_, client, _),
    ):
        with pytest.raises(InvalidRequestError, match=r"inputs\[3\]: must be one of at most 3 "):
            await client.embed([*TEXTS, "x"])
        found = await client.embed([*TEXTS, *TEXTS], dimensions=2)
        assert len(found.vectors) == 6


@pytest.mark.parametrize(
    ("named", "served", "refused"),
    [
        ({}, (), (1, 4)),
        ({"is_matryoshka": True}, (1, 3, 4), (5,)),
        ({"is_matryoshka": True, "matryoshka_dimensions": (2, 4)}, (2, 4), (1, 3)),
    ],
)
async def test_dimensions_are_those_that_the_model_names(
    tmp_path: Path, named: dict, served: tuple[int, ...], refused: tuple[int, ...]
) -> None:
    fake = FakeScheduler(model=replace(MODEL, **named))
    async with running_router(tmp_path, fake) as setup:
        for size in served:
            [vector] = (await setup.client.embed(PROMPT, dimensions=size)).vectors
            assert vector.tobytes() == fake_vector(PROMPT_IDS, PoolingParams(dimensions=size))
            assert len(vector) == size
        for size in refused:
            with pytest.raises(InvalidRequestError, match="dimensions: must be "):
                await setup.client.embed(PROMPT, dimensions=size)
        assert len(fake.submitted) == len(served)


async def test_the_first_that_fails_ends_the_others(tmp_path: Path) -> None:
    fake = FakeScheduler()
    fake.hold()
    fake.refuse_next(
        scheduler_pb2.Refused(
            reason=scheduler_pb2.REFUSAL_REASON_INVALID, field="prompt", message="no"
        )
    )
    async with running_router(tmp_path, fake) as setup:
        with pytest.raises(InvalidRequestError, match=r"inputs\[\d\]: no"):
            await setup.client.embed(TEXTS)
        await fake.until(lambda: len(fake.cancelled) == len(fake.submitted))


async def test_a_client_that_leaves_ends_them(tmp_path: Path) -> None:
    fake = FakeScheduler()
    fake.hold()
    async with running_router(tmp_path, fake) as setup:
        task = asyncio.create_task(setup.client.embed(TEXTS))
        await fake.until(lambda: len(fake.submitted) == 3)
        task.cancel()
        await fake.until(lambda: len(fake.cancelled) == 3)
        await until_late(fake, lambda timeout_s: setup.client.embed("x", timeout=timeout_s))
        await fake.until(lambda: len(fake.cancelled) == len(fake.submitted))


async def test_an_aborted_input_aborts_the_call(tmp_path: Path) -> None:
    fake = FakeScheduler()
    fake.hold()
    async with running_router(tmp_path, fake) as setup:
        task = asyncio.create_task(setup.client.embed(TEXTS, request_id="mine"))
        await fake.until(lambda: len(fake.submitted) == 3)
        [other, _] = [each for each in fake.submitted if each.request_id != "mine"]
        assert await setup.client.abort(other.request_id)
        with pytest.raises(AbortedError, match=r"inputs\[[12]\]: its request was aborted"):
            await task


async def test_each_input_is_counted_as_a_request(tmp_path: Path) -> None:
    async with running_router(tmp_path) as setup:
        await setup.client.embed(TEXTS)
        counters = setup.router._counters
        assert counters.outputs == {("fake", FinishReason.STOP): 3}
        assert counters.prompt_tokens["fake"] == sum(map(len, TOKENS))
        assert counters.num_open == 0


async def test_a_cell_of_the_previous_release_is_sent_none(tmp_path: Path) -> None:
    """It would ignore what is asked for and send tokens."""
    service = scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"]
    speaks, old, new = SpeaksPreviousRelease(service), FakeScheduler(), FakeScheduler()
    async with (
        running_fake(old, interceptors=[speaks]) as at_old,
        router_for(tmp_path, (at_old,)) as (router, client, _),
    ):
        await asyncio.wait_for(router.wait_until_serving(), 20.0)
        with pytest.raises(InvalidRequestError, match="model: must be one that gives vectors"):
            await client.embed("x")
        assert not old.submitted
    old.model = replace(MODEL, max_model_len=2 * MODEL.max_model_len)
    async with (
        running_fake(old, interceptors=[speaks]) as at_old,
        running_fake(new) as at_new,
        router_for(tmp_path, (at_old, at_new)) as (router, client, _),
    ):
        await old.until(lambda: old.num_sessions == 2)
        await new.until(lambda: new.num_sessions == 1)
        found = await client.embed([[5 + place] for place in range(20)])
        assert len(found.vectors) == len(new.submitted) == 20
        assert not old.submitted


async def test_a_model_without_a_head_with_vectors_only(tmp_path: Path) -> None:
    model = replace(MODEL, architecture="MistralModel", vectors_only=True)
    async with running_router(tmp_path, FakeScheduler(model=model)) as setup:
        assert len((await setup.client.embed(TEXTS)).vectors) == 3
        [shown] = await setup.client.list_models()
        assert shown.vectors_only
        with pytest.raises(
            InvalidRequestError, match=r"^model: must be one that generates text, got fake: Mistral"
        ):
            await setup.client.generate(PROMPT)
        assert len(setup.fake.submitted) == 3


async def test_vectors_come_as_the_machine_reads_them(tmp_path: Path) -> None:
    async with running_router(tmp_path) as setup, AsyncClient(setup.address) as client:
        [vector] = (await client.embed("x")).vectors
        assert vector == vector_of(expected(TOKENS[1])[0])
        assert vector.typecode == "f"
