"""The scheduler as a process: what it reports to its parent, and how it stops."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from quire.contract.errors import ModelLoadError
from tests.fakes.fake_worker import FakeWorker
from tests.rpc.router_double import open_session

CODE = """
import asyncio, sys
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.server import serve

config = SchedulerConfig(
    model="/m", served_model_name="m", workers=(sys.argv[1],), port=int(sys.argv[3])
)
sys.exit(asyncio.run(serve(config, int(sys.argv[2]))))
"""


@asynccontextmanager
async def scheduler_process(
    worker: str, port: int = 0
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A scheduler in a process of its own, and the line that ends its start."""
    read_fd, write_fd = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CODE, worker, str(write_fd), str(port)),
            pass_fds=(write_fd,),
            stderr=asyncio.subprocess.DEVNULL,
        )
    finally:
        os.close(write_fd)
    try:
        with os.fdopen(read_fd) as pipe:
            lines = (await asyncio.wait_for(asyncio.to_thread(pipe.read), 30)).splitlines()
        assert [line.split()[0] for line in lines[:-1]] in (["listening"], [])
        yield process, lines[-1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_announces_its_address_and_stops_cleanly(number: signal.Signals) -> None:
    async with FakeWorker() as worker, scheduler_process(worker.address) as (process, line):
        word, address = line.split()
        assert word == "ready"
        async with open_session(address) as router:
            assert router.welcome is not None
            assert router.welcome.model.name == "m"
            process.send_signal(number)
            assert await asyncio.wait_for(process.wait(), 10) == 0


@pytest.mark.parametrize(
    ("error", "part", "status"),
    [
        (ModelLoadError("shard 2 of 3 is missing"), "shard 2 of 3 is missing", 78),
        (ZeroDivisionError("a bug"), "internal error", 1),
    ],
)
async def test_a_start_that_cannot_succeed_reports_why_in_one_line(
    error: Exception, part: str, status: int
) -> None:
    async with (
        FakeWorker(load_error=error) as worker,
        scheduler_process(worker.address) as (process, line),
    ):
        assert line.startswith("error ")
        assert part in line
        assert await asyncio.wait_for(process.wait(), 10) == status


async def test_an_address_in_use_is_an_error() -> None:
    async with FakeWorker() as worker:
        port = int(worker.address.rpartition(":")[2])
        async with scheduler_process(worker.address, port) as (process, line):
            assert line.startswith("error ")
            assert str(port) in line
            assert await asyncio.wait_for(process.wait(), 10) == 1
