"""Streams move from cell to cell in mid-run, with their blocks or without: the same tokens."""

import asyncio

import pytest

from bench.cell_processes import Cells
from quire import AsyncClient, SamplingParams
from quire.contract.outputs import Delta
from quire.rpc import open_channel
from quire.v1 import scheduler_pb2, scheduler_pb2_grpc
from tests.e2e.test_cells import CACHE_GIB, until_connected
from tests.scraping import Scrape, get

NUM = 8


async def collect(
    client: AsyncClient, number: int, some_arrived: asyncio.Event | None = None
) -> list[int]:
    """The tokens of a stream; set the event once it has some blocks of them."""
    params = SamplingParams(temperature=1.0, seed=number, max_tokens=400, ignore_eos=True)
    tokens: list[int] = []
    async for event in client.stream(f"The text of number {number} is about", params):
        if isinstance(event, Delta):
            tokens.extend(event.token_ids)
            if some_arrived and len(tokens) > 40:
                some_arrived.set()
    return tokens


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
            arrived = [asyncio.Event() for _ in range(NUM)]
            streams = [
                asyncio.create_task(collect(client, place, event))
                for place, event in enumerate(arrived)
            ]
            await asyncio.gather(*(event.wait() for event in arrived))
            # At once: some of both cells' streams have far to go.
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
