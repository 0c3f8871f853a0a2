"""Streams move from cell to cell in mid-run, with their blocks or without: the same tokens."""

import asyncio
from contextlib import aclosing

import pytest

from bench.cell_processes import Cells
from quire import AsyncClient, SamplingParams
from quire.contract.outputs import Delta
from quire.rpc import open_channel
from quire.v1 import scheduler_pb2, scheduler_pb2_grpc
from tests.e2e.test_cells import CACHE_GIB, until_connected
from tests.scraping import Scrape, get

NUM = 8


async def collect(client: AsyncClient, number: int) -> list[int]:
    """The tokens of a stream."""
    params = SamplingParams(temperature=1.0, seed=number, max_tokens=400, ignore_eos=True)
    tokens: list[int] = []
    async for event in client.stream(f"The text of number {number} is about", params):
        if isinstance(event, Delta):
            tokens.extend(event.token_ids)
    return tokens


async def until_has_blocks(client: AsyncClient, address: str, num_before: int) -> None:
    """Wait until the streams of a cell have some blocks of tokens, and most of theirs to go.

    By what the cell reports: clients read its streams beside those of another cell, which may be
    slower by far.
    """
    async with asyncio.timeout(60), aclosing(client.watch_cluster()) as watch:
        async for cells in watch:
            state = next(cell.state for cell in cells if cell.address == address)
            if state.num_running and state.tokens_total - num_before > 40 * state.num_running:
                return


async def num_tokens(client: AsyncClient, address: str) -> int:
    """Tokens that a cell has sampled."""
    async with aclosing(client.watch_cluster()) as watch:
        async for cells in watch:
            return next(cell.state.tokens_total for cell in cells if cell.address == address)
    raise AssertionError("watch_cluster sends the state at once")


async def scrape(address: str) -> Scrape:
    status, text = await asyncio.to_thread(get, address, "/metrics")
    assert status == 200
    return Scrape(text)


@pytest.mark.parametrize("move_blocks", ["always", "never"])
async def test_moved_streams_go_on_with_the_same_tokens(move_blocks: str) -> None:
    options = {"kv_cache_gib": CACHE_GIB, "move_blocks": move_blocks, "admin_port": 0}
    async with Cells(options, {"num_threads": 1, "admin_port": 0}) as cells:
        first = await cells.start_cell()
        router = await cells.start_router([first.address])
        async with AsyncClient(router) as client:
            expected = await asyncio.gather(*(collect(client, i) for i in range(NUM)))
        # Its cache is empty, so that what it is not sent it computes.
        second = await cells.start_cell()
        router = await cells.start_router([first.address, second.address])
        async with AsyncClient(router) as client:
            await until_connected(client, 2)
            before = await num_tokens(client, first.address)
            streams = [asyncio.create_task(collect(client, place)) for place in range(NUM)]
            await until_has_blocks(client, first.address, before)
            async with open_channel(first.address) as channel:
                stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
                request = scheduler_pb2.DrainRequest(move=True)
                responses = [each async for each in stub.Drain(request, timeout=60)]
            assert responses[-1].num_moved > 0
            assert responses[-1].num_unfinished == 0
            assert await asyncio.gather(*streams) == expected
            seen = await scrape(second.scheduler.admin_address)
            sent = await scrape(first.worker.admin_address)
            received = await scrape(second.worker.admin_address)
            outcomes = {
                each: seen("quire_scheduler_moved_blocks_total", outcome=each)
                for each in ("fetched", "missing", "recomputed")
            }
            shipped = "quire_worker_shipped_blocks_total"
            if move_blocks == "always":
                assert outcomes["fetched"] > 0
                assert outcomes["recomputed"] == 0
                assert received(shipped, direction="received") == outcomes["fetched"]
                assert sent(shipped, direction="sent") >= outcomes["fetched"]
            else:
                assert outcomes["fetched"] == outcomes["missing"] == 0
                assert outcomes["recomputed"] > 0
                assert sent(shipped, direction="sent") == 0
