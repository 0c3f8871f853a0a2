"""Taking a cell out of service, and what it reports to routers of its cache: with fake workers."""

import asyncio
import signal

import grpc
import pytest

from quire.contract.block_hashes import extend_block_hashes, reported_depths, short_hash
from quire.contract.outputs import TOKENS_OF_DECODING
from quire.contract.sampling_params import SamplingParams
from quire.rpc import open_channel
from quire.v1 import scheduler_pb2, scheduler_pb2_grpc
from tests.fakes.fake_worker import FakeWorker
from tests.rpc.router_double import open_session, running_scheduler
from tests.rpc.scheduler_requests import reference
from tests.rpc.test_scheduler_process import scheduler_process
from tests.rpc.test_scheduler_recovery import NOT_SERVING, health, until_health

PARAMS = SamplingParams(seed=1, max_tokens=20, ignore_eos=True)
PROMPT = list(range(3, 53))


async def drain(address: str) -> int:
    async with open_channel(address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        responses = [each async for each in stub.Drain(scheduler_pb2.DrainRequest(), timeout=20)]
        assert len(responses) == 1
        return int(responses[0].num_unfinished)


def digest(token_ids: list[int], block_size: int = 4) -> set[int]:
    hashes: list[bytes] = []
    extend_block_hashes(hashes, token_ids, block_size, len(token_ids) // block_size)
    return {short_hash(hashes[depth - 1]) for depth in reported_depths(len(hashes))}


# ---------------------------------------------------------------- draining


async def test_a_draining_cell_finishes_what_it_has_and_refuses_what_is_new() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (scheduler, at),
        open_session(at) as router,
    ):
        worker.steps_allowed.clear()
        await router.submit(1, PROMPT, PARAMS)
        await router.until(lambda r: 1 in r.seeds)
        draining = asyncio.create_task(drain(at))
        # At once, not with the next regular report only.
        await router.until(lambda r: bool(r.states) and r.states[-1].draining)
        assert await health(at) == NOT_SERVING
        await router.submit(2, PROMPT, PARAMS)
        await router.until(lambda r: 2 in r.refused)
        assert router.refused[2].reason == scheduler_pb2.REFUSAL_REASON_DRAINING
        async with open_session(at) as late:
            assert late.welcome is not None
            assert late.welcome.cell_state.draining
        assert not draining.done()
        worker.steps_allowed.set()
        assert await draining == 0
        await router.finish(1)
        assert router.tokens == {1: reference(PROMPT, PARAMS)}
        await scheduler.wait_until_drained()


async def test_a_cell_that_moves_reports_what_is_left_and_moved() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
        open_channel(at) as channel,
    ):
        worker.steps_allowed.clear()
        for number in (1, 2, 3):
            await router.submit(number, PROMPT, PARAMS)
        await router.until(lambda r: len(r.seeds) == 3)
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        call = aiter(stub.Drain(scheduler_pb2.DrainRequest(move=True), timeout=20))
        first = await anext(call)
        assert (first.num_unfinished, first.num_moved) == (3, 0)
        await router.until(lambda r: bool(r.states) and r.states[-1].moving)
        # What a router does with those that go on elsewhere.
        await router.cancel(1, 3)
        await router.until(lambda r: {1, 3} <= r.finished.keys())
        progress = await anext(call)
        assert (progress.num_unfinished, progress.num_moved) == (1, 2)
        worker.steps_allowed.set()
        responses = [each async for each in call]
        assert (responses[-1].num_unfinished, responses[-1].num_moved) == (0, 2)
        assert router.tokens[2] == reference(PROMPT, PARAMS)


async def test_draining_has_an_end() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address, drain_timeout_s=0.2) as (_, at),
        open_session(at) as router,
    ):
        worker.steps_allowed.clear()
        await router.submit(1, PROMPT, PARAMS)
        await router.submit(2, PROMPT, PARAMS)
        await router.until(lambda r: len(r.seeds) == 2)
        assert await drain(at) == 2
        worker.steps_allowed.set()


async def test_a_cell_without_workers_does_not_wait_for_them() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        worker.steps_allowed.clear()
        await router.submit(1, PROMPT, PARAMS)
        await router.until(lambda r: 1 in r.seeds)
        await worker.kill()
        await until_health(at, NOT_SERVING)
        # Far less than the 30 s it would give a request that goes on.
        assert await asyncio.wait_for(drain(at), 10) == 1


async def test_sigterm_drains_and_all_is_sent_before_the_session_ends() -> None:
    async with FakeWorker() as worker, scheduler_process(worker.address) as (process, line):
        async with open_session(line.split()[1]) as router:
            worker.steps_allowed.clear()
            await router.submit(1, PROMPT, PARAMS)
            await router.until(lambda r: 1 in r.seeds)
            process.send_signal(signal.SIGTERM)
            await router.until(lambda r: bool(r.states) and r.states[-1].draining)
            worker.steps_allowed.set()
            await router.until(lambda r: r.ended)
            assert router.tokens == {1: reference(PROMPT, PARAMS)}
            assert 1 in router.finished
            assert await router.call.code() == grpc.StatusCode.UNAVAILABLE
        assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_drain_rpc_answers_and_ends_the_process() -> None:
    async with FakeWorker() as worker, scheduler_process(worker.address) as (process, line):
        assert await drain(line.split()[1]) == 0
        assert await asyncio.wait_for(process.wait(), 10) == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_does_not_wait(second: signal.Signals) -> None:
    async with (
        FakeWorker() as worker,
        scheduler_process(worker.address) as (process, line),
        open_session(line.split()[1]) as router,
    ):
        worker.steps_allowed.clear()
        await router.submit(1, PROMPT, PARAMS)
        await router.until(lambda r: 1 in r.seeds)
        process.send_signal(signal.SIGTERM)
        await router.until(lambda r: bool(r.states) and r.states[-1].draining)
        process.send_signal(second)
        # Far less than the 30 s it would give the request.
        assert await asyncio.wait_for(process.wait(), 10) == 0
        worker.steps_allowed.set()


# ---------------------------------------------------------------- load and cache


async def test_routers_know_what_can_be_found_in_the_cache() -> None:
    async with (
        FakeWorker(num_blocks=40) as worker,
        running_scheduler(worker.address, max_model_len=128) as (_, at),
        open_session(at) as router,
    ):
        assert router.welcome is not None
        assert not router.welcome.block_hashes
        await router.submit(1, PROMPT, PARAMS)
        await router.finish(1)
        # The last token is sampled, and not computed.
        first = digest([*PROMPT, *router.tokens[1]][:-1])
        await router.until(lambda r: r.block_hashes == first)
        async with open_session(at) as late:
            assert late.block_hashes == first
            # Fills the cache, so that the first one's blocks go, the last of them first.
            other = list(range(900, 780, -1))
            await router.submit(2, other, SamplingParams(seed=1, max_tokens=4, ignore_eos=True))
            await router.finish(2)
            second = digest([*other, *router.tokens[2]][:-1])
            for each in (router, late):
                await each.until(lambda r: second < r.block_hashes < second | first)
            assert late.block_hashes == router.block_hashes


async def test_a_cache_that_is_lost_is_reported_empty() -> None:
    async with FakeWorker(num_blocks=40) as worker:
        port = int(worker.address.rpartition(":")[2])
        async with running_scheduler(worker.address) as (_, at), open_session(at) as router:
            await router.submit(1, PROMPT, PARAMS)
            await router.finish(1)
            await router.until(lambda r: bool(r.block_hashes))
            await worker.kill()
            async with FakeWorker(num_blocks=40, port=port):
                await router.until(lambda r: not r.block_hashes)


async def test_without_a_prefix_cache_there_is_nothing_to_report() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address, enable_prefix_caching=False) as (_, at),
        open_session(at) as router,
    ):
        await router.submit(1, PROMPT, PARAMS)
        await router.finish(1)
        await router.until(lambda r: bool(r.states) and r.states[-1].tokens_total == 20)
        assert not router.block_hashes


async def test_what_is_outstanding_counts_a_shared_prompt_once() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address, max_num_seqs=1, max_num_batched_tokens=10) as (_, at),
        open_session(at) as router,
    ):
        worker.steps_allowed.clear()
        for number in range(1, 5):
            await router.submit(number, PROMPT, PARAMS)
        await router.until(lambda r: len(r.seeds) == 4)
        decoding = 4 * TOKENS_OF_DECODING
        # The first has two steps of 10 tokens ahead of it; the others will find 12 full blocks.
        expected = decoding + 30 + 3 * (50 - 48)
        await router.until(lambda r: bool(r.states) and r.states[-1].num_waiting == 3)
        assert router.states[-1].outstanding_tokens == expected
        worker.steps_allowed.set()
        await router.finish(1, 2, 3, 4)
        await router.until(lambda r: r.states[-1].outstanding_tokens == 0)
