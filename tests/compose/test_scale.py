"""Cells and routers come and go under load: no errors, the tokens of an undisturbed run."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager

import pytest

from quire import AsyncClient
from quire.contract.outputs import CellStatus
from tests.compose.conftest import STACKS
from tests.compose.load import PROMPTS, Tokens, collect, running_load, until_answering
from tests.compose.stack import Stack, addresses, docker, inspect


async def until_cells(client: AsyncClient, number: int) -> list[CellStatus]:
    """Return the cells, once there are so many that take requests."""
    async with asyncio.timeout(90), aclosing(client.watch_cluster()) as watch:
        async for cells in watch:
            ready = [cell for cell in cells if cell.connected and not cell.state.draining]
            if len(ready) == number:
                return ready
    raise AssertionError("watch_cluster ended")


async def until_running(client: AsyncClient, host: str) -> None:
    """Return when a cell reports that it runs a request."""
    async with asyncio.timeout(90), aclosing(client.watch_cluster()) as watch:
        async for cells in watch:
            if any(
                cell.address.startswith(f"{host}:") and cell.state.num_running for cell in cells
            ):
                return


@pytest.fixture
def second_cell(stack: Stack) -> Iterator[Stack]:
    """A project of its own with a further cell for the routers of the first; not started yet."""
    cell = stack.joining_cell()
    STACKS.append(cell)
    try:
        yield cell
    finally:
        STACKS.remove(cell)
        cell.down()


async def test_a_cell_joins_and_each_is_drained_in_turn(
    stack: Stack, second_cell: Stack, expected: list[Tokens]
) -> None:
    async with stack.client() as client, running_load(client, expected=expected) as load:
        await asyncio.to_thread(second_cell.up, "scheduler")
        await until_cells(client, 2)
        joined = addresses(second_cell.container("scheduler"))[f"{stack.name}_back"]
        await until_running(client, joined)

        # SIGTERM: it finishes what it has, and ends by itself.
        await asyncio.to_thread(stack.compose, "stop", "scheduler")
        assert inspect(stack.container("scheduler"))["State"]["ExitCode"] == 0
        await load.until_answers(2)
        await asyncio.to_thread(stack.compose, "start", "scheduler")
        await until_cells(client, 2)

        await asyncio.to_thread(second_cell.compose, "stop", "scheduler")
        assert inspect(second_cell.container("scheduler"))["State"]["ExitCode"] == 0
        await asyncio.to_thread(second_cell.down)
        await until_cells(client, 1)
        await load.until_answers(2)
    load.assert_undisturbed()
    await asyncio.to_thread(stack.wait_healthy)


@asynccontextmanager
async def two_routers(stack: Stack) -> AsyncIterator[tuple[AsyncClient, AsyncClient]]:
    """Clients of the router and of a second one; the second is gone on the way out."""
    try:
        await asyncio.to_thread(stack.scale_routers, 2)
        async with stack.client() as first, stack.client(port=stack.port + 1) as second:
            yield first, second
    finally:
        await asyncio.to_thread(stack.scale_routers, 1)


async def test_a_second_router_shares_the_cell_and_leaves_without_an_error(
    stack: Stack, expected: list[Tokens]
) -> None:
    async with two_routers(stack) as (first, second):
        async with running_load(first, second, expected=expected) as load:
            await load.until_answers(3)
        load.assert_undisturbed()

        arrived = [asyncio.Event() for _ in PROMPTS]
        streams = [asyncio.create_task(collect(second, i, arrived[i])) for i in range(len(PROMPTS))]
        await asyncio.gather(*(event.wait() for event in arrived))
        assert not any(stream.done() for stream in streams)
        await asyncio.to_thread(stack.scale_routers, 1)
        assert await asyncio.gather(*streams) == expected
        assert len(stack.containers("router")) == 1
        await until_answering(first, expected[0])


async def test_workers_that_come_back_at_each_others_address_are_not_confused(
    stack: Stack, expected: list[Tokens]
) -> None:
    workers = {name: stack.container(name) for name in ("worker-0", "worker-1")}
    before = {name: addresses(container) for name, container in workers.items()}
    async with stack.client() as client, running_load(client, expected=expected) as load:
        await asyncio.to_thread(docker, "stop", *workers.values())
        # The engine gives the first to come the lowest address that is free.
        highest_first = sorted(workers, key=lambda name: [*before[name].values()], reverse=True)
        await asyncio.to_thread(docker, "start", *(workers[name] for name in highest_first))
        await load.until_answers(3)
    load.assert_undisturbed()
    after = {name: addresses(container) for name, container in workers.items()}
    assert after["worker-0"] == before["worker-1"]
    assert after["worker-1"] == before["worker-0"]
    await asyncio.to_thread(stack.wait_healthy)
