"""A router before two cells, and what these report."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

from quire import AsyncClient, SamplingParams
from quire.contract.block_hashes import extend_block_hashes, reported_depths, short_hash
from quire.contract.outputs import CellState, CellStatus, Completion
from quire.v1 import scheduler_pb2
from tests.fakes.fake_scheduler import FakeScheduler, running_scheduler
from tests.rpc.router_setup import router_for

BLOCK_SIZE = 16
PROMPT = [3 + position % 200 for position in range(100)]
PARAMS = SamplingParams(max_tokens=4)
DRAINING = scheduler_pb2.Refused(
    reason=scheduler_pb2.REFUSAL_REASON_DRAINING, message="the cell is draining"
)

FULL = scheduler_pb2.Refused(
    reason=scheduler_pb2.REFUSAL_REASON_QUEUE_FULL, message="7 wait", retry_after_ms=1500
)

TOO_LARGE = scheduler_pb2.Refused(
    reason=scheduler_pb2.REFUSAL_REASON_TOO_LARGE,
    field="max_tokens",
    message="must be at most 3, got 4",
)


def digest(token_ids: list[int]) -> list[int]:
    hashes: list[bytes] = []
    extend_block_hashes(hashes, token_ids, BLOCK_SIZE, len(token_ids) // BLOCK_SIZE)
    return [short_hash(hashes[depth - 1]) for depth in reported_depths(len(hashes))]


def state(
    mark: int, *, draining: bool = False, workers_lost: bool = False, moving: bool = False
) -> CellState:
    """A report that differs from others in its number of free blocks."""
    return CellState(
        block_size=BLOCK_SIZE,
        num_blocks=1000,
        num_free_blocks=900 + mark,
        draining=draining,
        workers_lost=workers_lost,
        moving=moving,
    )


async def seen(client: AsyncClient, *expected: tuple[int, CellState]) -> None:
    """Return when the router knows these cells, by their place in the list, to be so."""
    async with asyncio.timeout(20), aclosing(client.watch_cluster()) as watch:
        async for cells in watch:
            if all(
                place < len(cells) and cells[place].connected and cells[place].state == what
                for place, what in expected
            ):
                return


async def connected(client: AsyncClient, number: int) -> list[CellStatus]:
    """Return the cells once so many are connected and no others are known."""
    async with asyncio.timeout(20), aclosing(client.watch_cluster()) as watch:
        async for cells in watch:
            if len(cells) == number and all(cell.connected for cell in cells):
                return cells
    raise AssertionError("the watch goes on")


@asynccontextmanager
async def two_cells(
    directory: Path, **settings: object
) -> AsyncIterator[tuple[list[FakeScheduler], AsyncClient]]:
    fakes = [FakeScheduler(), FakeScheduler()]
    async with AsyncExitStack() as stack:
        addresses = tuple(
            [await stack.enter_async_context(running_scheduler(fake)) for fake in fakes]
        )
        _, client, _ = await stack.enter_async_context(router_for(directory, addresses, **settings))
        await connected(client, 2)
        for place, fake in enumerate(fakes):
            await fake.send_state(state(place))
        await seen(client, (0, state(0)), (1, state(1)))
        yield fakes, client


async def three_tokens_at_the_first(
    fakes: list[FakeScheduler], client: AsyncClient
) -> "asyncio.Task[Completion]":
    """Begin a request of 8 tokens where its prefix is, at the first cell, which holds after 3."""
    await fakes[0].send_digest(digest(PROMPT))
    await fakes[0].send_state(state(10))
    await seen(client, (0, state(10)))
    fakes[0].hold()
    running = asyncio.create_task(client.generate([*PROMPT, 7], SamplingParams(max_tokens=8)))
    await fakes[0].until(lambda: fakes[0].num_running() == 1)
    await fakes[0].step(3)
    return running
