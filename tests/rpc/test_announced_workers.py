"""Workers that report their addresses to the scheduler: over real gRPC, with fake workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from quire import __version__
from quire.contract.sampling_params import SamplingParams
from quire.rpc import open_channel
from quire.v1 import scheduler_pb2, scheduler_pb2_grpc
from scheduler_svc.server import SchedulerServer
from tests.fakes.fake_model import fake_generate
from tests.fakes.fake_worker import FAKE_MODEL, FakeWorker
from tests.rpc.router_double import RouterDouble, open_session, running_scheduler

PARAMS = SamplingParams(temperature=1.0, seed=3, max_tokens=60, ignore_eos=True)
PROMPT = (5, 7, 11)


@asynccontextmanager
async def waiting_scheduler(size: int) -> AsyncIterator[tuple[SchedulerServer, str]]:
    """A scheduler whose workers have yet to announce themselves."""
    async with running_scheduler(wait=False, tensor_parallel_size=size) as running:
        yield running


async def announce(at: str, rank: int, address: str, version: str = __version__) -> None:
    async with open_channel(at) as channel:
        await scheduler_pb2_grpc.SchedulerServiceStub(channel).AnnounceWorker(
            scheduler_pb2.AnnounceWorkerRequest(rank=rank, address=address, version=version),
            timeout=20,
        )


async def refusal(at: str, rank: int, address: str, version: str = __version__) -> tuple[str, str]:
    """Status code and words with which an announcement is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await announce(at, rank, address, version)
    return caught.value.code().name, caught.value.details() or ""


async def serving(scheduler: SchedulerServer) -> None:
    await asyncio.wait_for(scheduler.wait_until_serving(), 20)


async def check_tokens(router: RouterDouble, number: int) -> None:
    await router.finish(number)
    assert router.tokens[number] == fake_generate(
        PROMPT, PARAMS, vocab_size=FAKE_MODEL.vocab_size, max_model_len=FAKE_MODEL.max_model_len
    )


async def test_the_group_forms_when_the_last_rank_is_there() -> None:
    missing: list[tuple[int, ...]] = []
    async with FakeWorker() as first, FakeWorker() as second, waiting_scheduler(2) as (server, at):
        server._driver.workers.roster._on_missing = missing.append
        await announce(at, 1, second.address)
        await announce(at, 1, second.address)
        formed = asyncio.create_task(server.wait_until_serving())
        done, _ = await asyncio.wait({formed}, timeout=0.3)
        assert not done
        assert first.load_requests == second.load_requests == []
        await announce(at, 0, first.address)
        await asyncio.wait_for(formed, 20)
        assert missing == [(0, 1), (0,), ()]
        assert [load.tensor_parallel_rank for load in first.load_requests] == [0]
        assert [load.tensor_parallel_rank for load in second.load_requests] == [1]
        async with open_session(at) as router:
            await router.submit(1, PROMPT, PARAMS)
            await check_tokens(router, 1)


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_rank_that_comes_back_elsewhere_heals_the_group(victim: int) -> None:
    async with FakeWorker() as first, FakeWorker() as second, waiting_scheduler(2) as (server, at):
        workers = [first, second]
        for rank, worker in enumerate(workers):
            await announce(at, rank, worker.address)
        await serving(server)
        async with open_session(at) as router:
            await router.submit(1, PROMPT, PARAMS)
            await workers[victim].wait_steps(20)
            await workers[victim].kill()
            async with FakeWorker() as restarted:
                assert restarted.address != workers[victim].address
                await announce(at, victim, restarted.address)
                await check_tokens(router, 1)
                assert restarted.num_steps > 0
                assert [load.tensor_parallel_rank for load in restarted.load_requests] == [victim]
        survivor = workers[1 - victim]
        assert len(survivor.load_requests) >= 2


async def test_a_port_may_pass_from_one_rank_to_the_other() -> None:
    async with FakeWorker() as first, FakeWorker() as second, waiting_scheduler(2) as (server, at):
        port = int(first.address.rpartition(":")[2])
        await announce(at, 0, first.address)
        await announce(at, 1, second.address)
        await serving(server)
        await first.kill()
        await second.kill()
        async with FakeWorker(port=port) as other, FakeWorker() as another:
            await announce(at, 1, other.address)
            await announce(at, 0, another.address)
            async with open_session(at) as router:
                await router.submit(1, PROMPT, PARAMS)
                await check_tokens(router, 1)
            assert other.load_requests[-1].tensor_parallel_rank == 1
            assert another.load_requests[-1].tensor_parallel_rank == 0


async def test_an_announced_worker_that_vanished_before_the_group_formed_is_waited_for() -> None:
    async with FakeWorker() as first, FakeWorker() as second, waiting_scheduler(2) as (server, at):
        await announce(at, 0, first.address)
        await first.kill()
        await announce(at, 1, second.address)
        while 0 in server._driver.workers.roster._addresses:
            await asyncio.sleep(0.01)
        async with FakeWorker() as restarted:
            await announce(at, 0, restarted.address)
            await serving(server)


async def test_a_second_worker_of_a_rank_in_use_is_refused_until_the_first_is_gone() -> None:
    async with FakeWorker() as first, FakeWorker() as second, waiting_scheduler(1) as (server, at):
        await announce(at, 0, first.address)
        await serving(server)
        code, words = await refusal(at, 0, second.address)
        assert code == "FAILED_PRECONDITION"
        assert words == f"rank 0 is held by the worker at {first.address}"
        async with open_session(at) as router:
            await router.submit(1, PROMPT, PARAMS)
            await check_tokens(router, 1)
            assert second.load_requests == []
            await first.kill()
            await announce(at, 0, second.address)
            await router.submit(2, PROMPT, PARAMS)
            await check_tokens(router, 2)
            assert len(second.load_requests) == 1


@pytest.mark.parametrize(
    ("rank", "address", "version", "code", "parts"),
    [
        (2, "127.0.0.1:9", __version__, "INVALID_ARGUMENT", ["rank", "[0, 1]", "2"]),
        (2**32 - 1, "127.0.0.1:9", __version__, "INVALID_ARGUMENT", ["rank", "4294967295"]),
        (0, "unix:/tmp/x:9", __version__, "INVALID_ARGUMENT", ["address", "unix:/tmp/x:9"]),
        (0, "host:0", __version__, "INVALID_ARGUMENT", ["address", "65535", "host:0"]),
        (0, "", __version__, "INVALID_ARGUMENT", ["address", "HOST:PORT"]),
        (0, "a" * 300 + ":9", __version__, "INVALID_ARGUMENT", ["address", "259"]),
    ],
)
async def test_a_bad_announcement_is_refused_with_the_reason(
    rank: int, address: str, version: str, code: str, parts: list[str]
) -> None:
    async with waiting_scheduler(2) as (_, at):
        refused = await refusal(at, rank, address, version)
    assert refused[0] == code
    assert all(part in refused[1] for part in parts), refused[1]


async def test_a_scheduler_with_configured_workers_takes_no_announcements() -> None:
    async with FakeWorker() as worker, running_scheduler(worker.address) as (_, at):
        code, words = await refusal(at, 0, "127.0.0.1:9")
    assert code == "FAILED_PRECONDITION"
    assert "workers" in words
