"""Cells of one model whose tokens differ: a stream continues where its tokens stay the same."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from quire import AsyncClient, SamplingParams
from quire.contract.errors import NumericsLostError, UnavailableError
from quire.contract.outputs import Completion, Event, Started
from quire.sdk.collect import Collector
from router.cells.choice import RoutingPolicy
from tests.fakes.fake_scheduler import MODEL, FakeScheduler, running_scheduler
from tests.rpc.cells_setup import DRAINING, connected
from tests.rpc.router_setup import TEXT_ID, router_for

PROMPTS = [[5 + i, 9, 77, 30] for i in range(9)]
NUM_TOKENS = 20
PARAMS = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, seed=1, ignore_eos=True)


def token(prompt: list[int], numerics: str, position: int) -> int:
    """Return what cells of a numerics id compute, each another token."""
    return 100 * len(numerics) + 300 * (numerics == "b") + prompt[0] + position


def fake_cell(described: str) -> FakeScheduler:
    """A cell of a numerics id, or of one and a limit on the length of sequences: "a, 64"."""
    numerics, _, length = described.partition(", ")
    return FakeScheduler(
        lambda prompt, seed, position: token(list(prompt), numerics, position),
        replace(MODEL, numerics_id=numerics, max_model_len=int(length or MODEL.max_model_len)),
    )


def check(prompt: list[int], completion: Completion) -> None:
    """All tokens are those of the numerics id that the stream began with."""
    expected = (token(prompt, completion.numerics_id, i) for i in range(NUM_TOKENS))
    assert completion.token_ids == tuple(expected)


@dataclass
class Cells:
    """Fakes, what stops each of them, and a client of their router."""

    fakes: list[FakeScheduler]
    addresses: list[str]
    exits: list[AsyncExitStack]
    client: AsyncClient

    async def kill(self, place: int) -> None:
        await self.exits[place].aclose()


@asynccontextmanager
async def cells_of(directory: Path, *ids: str, **settings: object) -> AsyncIterator[Cells]:
    """A router of cells with these numerics ids, all connected; they do not step yet."""
    fakes = [fake_cell(each) for each in ids]
    async with AsyncExitStack() as stack:
        exits = [await stack.enter_async_context(AsyncExitStack()) for _ in ids]
        addresses = []
        for fake, own in zip(fakes, exits, strict=True):
            fake.hold()
            addresses.append(await own.enter_async_context(running_scheduler(fake)))
        _, client, _ = await stack.enter_async_context(
            router_for(directory, tuple(addresses), **{"routing_policy": "round-robin", **settings})
        )
        await connected(client, len(ids))
        # The router goes first: it would wait for a cell that is gone.
        yield Cells(fakes, addresses, exits, client)


async def spread(cells: Cells) -> list["asyncio.Task[Completion]"]:
    """Start requests on all cells, and give each of them some tokens."""
    streams = [cells.client.stream(prompt, PARAMS) for prompt in PROMPTS]
    # Queued at a cell, as the router knows.
    started = await asyncio.gather(*(anext(stream) for stream in streams))
    tasks = [asyncio.create_task(read(*each)) for each in zip(started, streams, strict=True)]
    for fake in cells.fakes:
        await fake.step(4)
    return tasks


async def read(started: Event, stream: AsyncIterator[Event]) -> Completion:
    collector = Collector()
    collector.add(started)
    async for event in stream:
        collector.add(event)
    [completion] = collector.completions()
    return completion


@pytest.mark.parametrize("policy", RoutingPolicy)
async def test_a_stream_continues_on_the_cell_of_the_same_id(
    policy: RoutingPolicy, tmp_path: Path
) -> None:
    async with cells_of(tmp_path, "a", "b", "a", routing_policy=policy) as cells:
        tasks = await spread(cells)
        victim, other, survivor = cells.fakes
        lost = {request.request_id for request in victim.submitted}
        assert lost
        await cells.kill(0)
        await survivor.until(lambda: lost <= {each.request_id for each in survivor.submitted})
        assert not lost & {each.request_id for each in other.submitted}
        await survivor.release()
        await other.release()
        completions = await asyncio.gather(*tasks)
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        check(prompt, completion)
    assert {completion.numerics_id for completion in completions} == {"a", "b"}


@pytest.mark.parametrize("ids", [("a", "b"), ("a", ""), ("", "b")])
async def test_no_stream_continues_on_a_cell_of_another_id(
    ids: tuple[str, str], tmp_path: Path
) -> None:
    lost, left = ids
    async with cells_of(tmp_path, *ids, recovery_timeout_s=1.0) as cells:
        tasks = await spread(cells)
        num_left = len(cells.fakes[1].submitted)
        await cells.kill(0)
        await cells.fakes[1].release()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert len(cells.fakes[1].submitted) == num_left
        # A new request goes to any cell of the model.
        again = await cells.client.generate(PROMPTS[0], PARAMS)
    errors = [each for each in results if isinstance(each, BaseException)]
    assert len(errors) == len(PROMPTS) - num_left > 0
    for error in errors:
        assert isinstance(error, NumericsLostError)
        assert isinstance(error, UnavailableError)
        assert f"numerics_id: must be {lost or 'absent'} to continue" in error.message
        assert "is left that serves fake (waited 1 s)" in error.message
    for prompt, result in zip([*PROMPTS, PROMPTS[0]], [*results, again], strict=True):
        if isinstance(result, Completion):
            assert result.numerics_id == left
            check(prompt, result)


async def test_a_stream_continues_where_it_may_become_as_long(tmp_path: Path) -> None:
    too_short = len(PROMPTS[0]) + NUM_TOKENS - 1
    async with cells_of(tmp_path, "a", f"a, {too_short}", "a") as cells:
        victim, short, _ = cells.fakes
        tasks = await spread(cells)
        num_short = len(short.submitted)
        assert victim.submitted
        await cells.kill(0)
        for fake in cells.fakes[1:]:
            await fake.release()
        completions = await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert len(short.submitted) == num_short
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        check(prompt, completion)


@pytest.mark.parametrize(("comes_back_as", "recovery_timeout_s"), [("a", 60.0), ("b", 3.0)])
async def test_a_cell_that_comes_back_continues_if_its_id_is_the_same(
    comes_back_as: str, recovery_timeout_s: float, tmp_path: Path
) -> None:
    async with cells_of(tmp_path, "a", recovery_timeout_s=recovery_timeout_s) as cells:
        tasks = await spread(cells)
        await cells.kill(0)
        port = int(cells.addresses[0].rpartition(":")[2])
        again = fake_cell(comes_back_as)
        async with running_scheduler(again, port):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for prompt, result in zip(PROMPTS, results, strict=True):
            if comes_back_as == "a":
                assert isinstance(result, Completion)
                check(prompt, result)
            else:
                assert isinstance(result, NumericsLostError)
        assert len(again.submitted) == (len(PROMPTS) if comes_back_as == "a" else 0)


async def test_cells_of_other_ids_that_come_and_go_prolong_no_wait(tmp_path: Path) -> None:
    async with cells_of(tmp_path, "a", "b", recovery_timeout_s=1.0) as cells:
        stop = asyncio.Event()

        async def flap() -> None:
            other = cells.fakes[1]
            while not stop.is_set():
                num_sessions = other.num_sessions
                other.drop_sessions()
                while other.num_sessions == num_sessions and not stop.is_set():
                    await asyncio.sleep(0.01)

        cells.fakes[1].refuse_next(DRAINING)
        stream = cells.client.stream(PROMPTS[0], PARAMS)
        # Queued at the first cell, as the router knows: bound to its id.
        task = asyncio.create_task(read(await anext(stream), stream))
        await cells.kill(0)
        flapping = asyncio.create_task(flap())
        try:
            # Numerics lost, or no cell at all while the other one is away.
            with pytest.raises(UnavailableError):
                await asyncio.wait_for(task, 20)
        finally:
            stop.set()
            await flapping


async def test_a_request_that_has_not_begun_is_bound_to_no_id(tmp_path: Path) -> None:
    async with cells_of(tmp_path, "a", "b", routing_policy="prefix-aware") as cells:
        for fake in cells.fakes:
            await fake.release()
        cells.fakes[0].refuse_next(DRAINING)
        completions = [await cells.client.generate(PROMPTS[0], PARAMS) for _ in range(8)]
    # The refusal takes the first cell from those that may be chosen.
    assert completions[-1].numerics_id == "b"
    for completion in completions:
        check(PROMPTS[0], completion)


async def test_clients_get_both_ids(tmp_path: Path) -> None:
    async with cells_of(tmp_path, "a", "b", "a") as cells:
        models = await cells.client.list_models()
        found = {(model.name, model.numerics_id, model.text_id) for model in models}
        assert found == {("fake", "a", TEXT_ID), ("fake", "b", TEXT_ID)}
        assert len(models) == 2
        for fake in cells.fakes:
            await fake.release()
        # One name is one model to those who name none.
        started = await anext(cells.client.stream(PROMPTS[0], PARAMS, model=""))
        assert isinstance(started, Started)
        assert started.numerics_id in ("a", "b")
        assert started.text_id == TEXT_ID
        completion = await cells.client.generate(PROMPTS[0], PARAMS)
        assert completion.text_id == TEXT_ID


async def test_a_cell_of_another_tokenizer_is_logged(tmp_path: Path) -> None:
    models = [replace(MODEL, text_id=each) for each in ("", TEXT_ID, "other")]
    with capture_logs() as lines:
        async with AsyncExitStack() as stack:
            addresses = [
                await stack.enter_async_context(running_scheduler(FakeScheduler(model=model)))
                for model in models
            ]
            _, client, _ = await stack.enter_async_context(router_for(tmp_path, tuple(addresses)))
            cells = await connected(client, 3)
    assert [cell.model for cell in cells] == models
    [line] = [line for line in lines if line["event"] == "text_differs"]
    assert (line["address"], line["text_id"], line["router_text_id"]) == (
        addresses[2],
        "other",
        TEXT_ID,
    )
