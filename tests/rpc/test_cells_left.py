"""Cells that drain or have lost their workers: what goes elsewhere, and what waits."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from quire import SamplingParams
from quire.contract.errors import UnavailableError
from tests.fakes.fake_scheduler import MODEL, FakeScheduler, running_scheduler
from tests.rpc.cells_setup import (
    DRAINING,
    PARAMS,
    PROMPT,
    connected,
    digest,
    seen,
    state,
    three_tokens_at_the_first,
    two_cells,
)
from tests.rpc.router_setup import router_for


async def test_a_request_that_crosses_the_word_of_draining_goes_elsewhere(tmp_path: Path) -> None:
    async with two_cells(tmp_path) as (fakes, client):
        # The first holds the prefix, so that all would go there.
        await fakes[0].send_digest(digest(PROMPT))
        await fakes[0].send_state(state(10))
        await seen(client, (0, state(10)))
        fakes[0].refuse_next(DRAINING)
        for _ in range(3):
            assert len((await client.generate([*PROMPT, 7], PARAMS)).token_ids) == 4
        # After one refusal it is not asked again.
        assert [len(fake.submitted) for fake in fakes] == [0, 3]


async def test_a_draining_cell_gets_nothing_new_and_finishes_what_it_has(tmp_path: Path) -> None:
    async with two_cells(tmp_path) as (fakes, client):
        await fakes[0].send_digest(digest(PROMPT))
        await fakes[0].send_state(state(10))
        await seen(client, (0, state(10)))
        fakes[0].hold()
        running = asyncio.create_task(client.generate([*PROMPT, 7], PARAMS))
        await fakes[0].until(lambda: fakes[0].num_running() == 1)
        await fakes[0].send_state(state(11, draining=True))
        await seen(client, (0, state(11, draining=True)))
        assert len((await client.generate([*PROMPT, 7], PARAMS)).token_ids) == 4
        assert [len(fake.submitted) for fake in fakes] == [1, 1]
        await fakes[0].release()
        assert len((await running).token_ids) == 4
        assert [len(fake.submitted) for fake in fakes] == [1, 1]


async def test_what_is_left_of_a_drained_cell_continues_on_another(tmp_path: Path) -> None:
    async with two_cells(tmp_path) as (fakes, client):
        await fakes[0].send_digest(digest(PROMPT))
        await fakes[0].send_state(state(10))
        await seen(client, (0, state(10)))
        params = SamplingParams(max_tokens=8)
        fakes[0].hold()
        running = asyncio.create_task(client.generate([*PROMPT, 7], params))
        await fakes[0].until(lambda: fakes[0].num_running() == 1)
        await fakes[0].step(3)
        await fakes[0].send_state(state(11, draining=True))
        await seen(client, (0, state(11, draining=True)))
        fakes[0].drop_sessions()
        assert (await running).token_ids == tuple(PROMPT[:8])
        assert [request.num_resumed for request in fakes[1].submitted] == [3]


async def test_a_cell_that_drains_and_moves_is_left_at_once(tmp_path: Path) -> None:
    async with two_cells(tmp_path) as (fakes, client):
        running = await three_tokens_at_the_first(fakes, client)
        await fakes[0].send_state(state(11, draining=True, moving=True))
        assert (await running).token_ids == tuple(PROMPT[:8])
        assert [request.num_resumed for request in fakes[1].submitted] == [3]
        assert fakes[1].submitted[0].was_queued
        await fakes[0].until(lambda: len(fakes[0].cancelled) == 1)


async def test_what_no_other_cell_may_continue_is_not_moved(tmp_path: Path) -> None:
    fakes = [FakeScheduler(model=replace(MODEL, numerics_id=each)) for each in ("5f7a", "91c0")]
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(running_scheduler(each)) for each in fakes]
        _, client, _ = await stack.enter_async_context(router_for(tmp_path, tuple(addresses)))
        await connected(client, 2)
        await fakes[1].send_state(state(20, draining=True))
        await fakes[0].send_state(state(10))
        await seen(client, (0, state(10)), (1, state(20, draining=True)))
        fakes[0].hold()
        running = asyncio.create_task(client.generate([*PROMPT, 7], PARAMS))
        await fakes[0].until(lambda: fakes[0].num_running() == 1)
        await fakes[1].send_state(state(21))
        await seen(client, (1, state(21)))
        moving = state(11, draining=True, moving=True)
        await fakes[0].send_state(moving)
        await seen(client, (0, moving))
        # What is new goes to the other cell, what has begun ends where it is.
        assert len((await client.generate([*PROMPT, 8], PARAMS)).token_ids) == 4
        await fakes[0].release()
        assert (await running).token_ids == tuple(PROMPT[:4])
        assert not fakes[0].cancelled
        assert [len(fake.submitted) for fake in fakes] == [1, 1]


async def test_where_all_cells_drain_requests_wait_for_one_that_joins(tmp_path: Path) -> None:
    async with two_cells(tmp_path) as (fakes, client):
        for place, fake in enumerate(fakes):
            await fake.send_state(state(place, draining=True))
        await seen(client, (0, state(0, draining=True)), (1, state(1, draining=True)))
        waiting = asyncio.create_task(client.generate([*PROMPT, 7], PARAMS))
        # It connects again and does not drain: as one that was started anew.
        fakes[1].drop_sessions()
        assert len((await waiting).token_ids) == 4
        assert [len(fake.submitted) for fake in fakes] == [0, 1]


async def test_where_all_cells_drain_waiting_has_an_end(tmp_path: Path) -> None:
    async with two_cells(tmp_path, connect_timeout_s=0.2) as (fakes, client):
        for place, fake in enumerate(fakes):
            await fake.send_state(state(place, draining=True))
        await seen(client, (0, state(0, draining=True)), (1, state(1, draining=True)))
        with pytest.raises(UnavailableError, match="no scheduler is reachable"):
            await client.generate([*PROMPT, 7], PARAMS)


async def test_a_cell_that_loses_its_workers_is_left_at_once(tmp_path: Path) -> None:
    async with two_cells(tmp_path) as (fakes, client):
        running = await three_tokens_at_the_first(fakes, client)
        await fakes[0].send_state(state(11, workers_lost=True))
        # What ran there goes on from the tokens that the router holds.
        assert (await running).token_ids == tuple(PROMPT[:8])
        assert [request.num_resumed for request in fakes[1].submitted] == [3]
        await fakes[0].until(lambda: bool(fakes[0].cancelled))
        assert len((await client.generate([*PROMPT, 7], PARAMS)).token_ids) == 4
        assert [len(fake.submitted) for fake in fakes] == [1, 2]
        # With its workers it is back; its cache is known to be empty until it reports otherwise.
        await fakes[1].send_state(state(12, workers_lost=True))
        await fakes[0].send_state(state(13))
        await seen(client, (0, state(13)), (1, state(12, workers_lost=True)))
        await fakes[0].release()
        assert len((await client.generate([*PROMPT, 7], PARAMS)).token_ids) == 4
        assert [len(fake.submitted) for fake in fakes] == [2, 2]


async def test_where_no_other_cell_may_continue_it_a_request_waits_for_the_workers(
    tmp_path: Path,
) -> None:
    async with two_cells(tmp_path) as (fakes, client):
        await fakes[1].send_state(state(20, draining=True))
        await seen(client, (1, state(20, draining=True)))
        fakes[0].hold()
        running = asyncio.create_task(client.generate([*PROMPT, 7], PARAMS))
        await fakes[0].until(lambda: fakes[0].num_running() == 1)
        await fakes[0].send_state(state(11, workers_lost=True))
        await seen(client, (0, state(11, workers_lost=True)))
        late = asyncio.create_task(client.generate([*PROMPT, 8], PARAMS))
        await fakes[0].send_state(state(12))
        await fakes[0].until(lambda: fakes[0].num_running() == 2)
        await fakes[0].release()
        assert (await running).token_ids == (await late).token_ids == tuple(PROMPT[:4])
        assert not fakes[0].cancelled
        assert [len(fake.submitted) for fake in fakes] == [2, 0]


async def test_a_cell_that_joins_takes_over_what_waits_for_workers(tmp_path: Path) -> None:
    async with two_cells(tmp_path) as (fakes, client):
        await fakes[1].send_state(state(20, draining=True))
        await seen(client, (1, state(20, draining=True)))
        fakes[0].hold()
        running = asyncio.create_task(client.generate([*PROMPT, 7], PARAMS))
        await fakes[0].until(lambda: fakes[0].num_running() == 1)
        await fakes[0].send_state(state(11, workers_lost=True))
        await seen(client, (0, state(11, workers_lost=True)))
        fakes[1].drop_sessions()
        assert (await running).token_ids == tuple(PROMPT[:4])
        assert [len(fake.submitted) for fake in fakes] == [1, 1]
