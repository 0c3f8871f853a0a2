"""Cells that leave and join under load: no errors, and the tokens of an undisturbed run."""

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from bench.cell_processes import CellProcesses, Cells
from quire import AsyncClient
from tests.e2e.test_recovery import NUM_STREAMING, PROMPTS, collect, collect_all

CACHE_GIB = 0.03125
QUIRE = str(Path(sys.executable).parent / "quire")


@asynccontextmanager
async def two_cells(
    **options: object,
) -> AsyncIterator[tuple[Cells, list[CellProcesses], AsyncClient]]:
    async with Cells({"kv_cache_gib": CACHE_GIB, **options}, {"num_threads": 1}) as cells:
        started = await cells.start_cells(2)
        router = await cells.start_router([cell.address for cell in started])
        async with AsyncClient(router) as client:
            await until_connected(client, 2)
            yield cells, started, client


async def until_connected(client: AsyncClient, number: int) -> None:
    async with asyncio.timeout(60), aclosing(client.watch_cluster()) as watch:
        async for cells in watch:
            if sum(cell.connected and not cell.state.draining for cell in cells) == number:
                return


async def num_running(client: AsyncClient, address: str) -> int:
    """Requests that a cell reported to run."""
    async with aclosing(client.watch_cluster()) as watch:
        async for cells in watch:
            return next(cell.state.num_running for cell in cells if cell.address == address)
    raise AssertionError("watch_cluster sends the state at once")


@pytest.mark.parametrize("options", [{}, {"drain_timeout_s": 0.1}])
async def test_draining_a_cell_in_mid_run_changes_no_token(options: dict[str, float]) -> None:
    async with two_cells(**options) as (cells, started, client):
        expected = await collect_all(client)
        arrived = [asyncio.Event() for _ in PROMPTS]
        streams = [asyncio.create_task(collect(client, i, arrived[i])) for i in range(len(PROMPTS))]
        await asyncio.gather(*(event.wait() for event in arrived[:NUM_STREAMING]))
        busy = [await num_running(client, cell.address) for cell in started]
        assert max(busy) > 0
        assert await cells.drain(started[busy.index(max(busy))]) == 0
        # All that comes meanwhile and later goes to the other.
        late = asyncio.create_task(collect(client, 0))
        assert await asyncio.gather(*streams) == expected
        assert await late == expected[0]
        await until_connected(client, 1)


async def test_a_cell_joins_and_takes_over_when_the_first_is_drained() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with Cells({"kv_cache_gib": CACHE_GIB}, {"num_threads": 1}) as cells:
        first = await cells.start_cell()
        # The second address does not answer yet.
        router = await cells.start_router([first.address, f"127.0.0.1:{port}"])
        async with AsyncClient(router) as client:
            expected = await collect_all(client)
            await cells.start_cell(port)
            await until_connected(client, 2)
            arrived = [asyncio.Event() for _ in PROMPTS]
            streams = [
                asyncio.create_task(collect(client, place, event))
                for place, event in enumerate(arrived)
            ]
            await asyncio.gather(*(event.wait() for event in arrived[:NUM_STREAMING]))
            command = [QUIRE, "drain", first.address, "--move"]
            drained = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
            )
            assert drained.returncode == 0, drained.stderr
            result = f"{first.address} is drained: all done; "
            counts = r"\d+ moved, \d+ finished here, [\d.]+ s\n"
            assert re.search(re.escape(result) + counts, drained.stdout), drained.stdout
            assert await first.scheduler.wait() == 0
            assert await asyncio.gather(*streams) == expected
            again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert again.returncode == 1
            assert again.stderr.startswith(f"error: {first.address}: UNAVAILABLE")
