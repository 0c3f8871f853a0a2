"""Peers that fall silent while their connections stand: over real gRPC, with fake peers."""

import asyncio

import grpc
import pytest

from quire.v1 import scheduler_pb2, worker_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.rpc.router_double import open_session, running_scheduler
from tests.rpc.scheduler_requests import LONG, reference


async def test_a_router_that_falls_silent_loses_its_session_and_its_blocks() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address, peer_timeout_s=0.5) as (_, address),
        open_session(address) as silent,
        open_session(address) as other,
    ):
        worker.steps_allowed.clear()
        await silent.submit(1, [5, 6, 7], LONG)
        await other.until(lambda router: bool(router.states) and router.states[-1].num_waiting == 0)
        await silent.send(scheduler_pb2.SessionRequest(heartbeat=scheduler_pb2.Heartbeat()))
        await silent.until(lambda router: router.ended)
        assert await silent.call.code() is grpc.StatusCode.UNAVAILABLE
        assert "no heartbeat for" in await silent.call.details()
        worker.steps_allowed.set()
        await other.until(lambda router: router.states[-1].num_running == 0)
        # A peer of another version that sends no heartbeats is not watched.
        await other.submit(2, [5, 6], LONG)
        await other.finish(2)


@pytest.mark.parametrize("is_hung", [False, True])
async def test_a_worker_that_falls_silent_or_hangs_is_formed_again(is_hung: bool) -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address, peer_timeout_s=0.5) as (_, address),
        open_session(address) as router,
    ):
        await router.submit(1, [5, 6, 7], LONG)
        await worker.wait_steps(5)
        epoch = worker.epoch
        worker.steps_allowed.clear()
        worker.heartbeat = (
            worker_pb2.HeartbeatResponse(step_id=worker.num_steps + 1, running_ms=400_000)
            if is_hung
            else None
        )
        await router.until(lambda router: any(state.workers_lost for state in router.states))
        assert bool(worker.hung_steps) == is_hung
        worker.heartbeat = worker_pb2.HeartbeatResponse()
        worker.steps_allowed.set()
        await router.finish(1)
        assert router.tokens[1] == reference([5, 6, 7], LONG)
        assert worker.epoch > epoch


async def test_a_step_that_hung_before_a_scheduler_began_is_found_by_its_own_limit() -> None:
    async with FakeWorker() as worker:
        worker.mirror_allowed.clear()
        step = worker_pb2.HeartbeatResponse(step_id=8, running_ms=2_400, limit_ms=2_300)
        worker.heartbeat = step
        async with running_scheduler(worker.address, wait=False) as (scheduler, _):
            async with asyncio.timeout(20):
                while not worker.hung_steps:
                    await asyncio.sleep(0)
            assert worker.hung_steps == [8]
            worker.heartbeat = worker_pb2.HeartbeatResponse()
            worker.mirror_allowed.set()
            await asyncio.wait_for(scheduler.wait_until_serving(), 20)


async def test_a_step_that_was_cut_off_has_twice_the_time_when_it_comes_again() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, address),
        open_session(address) as router,
    ):
        worker.steps_allowed.clear()
        worker.heartbeat = worker_pb2.HeartbeatResponse(step_id=1, running_ms=2_400, limit_ms=2_000)
        await router.submit(1, [5, 6, 7], LONG)
        async with asyncio.timeout(20):
            while not worker.hung_steps:
                await asyncio.sleep(0)
            seen = worker.num_heartbeats
            while worker.num_heartbeats < seen + 4:
                await asyncio.sleep(0)
        assert worker.hung_steps == [1]
        worker.steps_allowed.set()
        await router.finish(1)


async def test_a_rank_that_waits_for_another_does_not_hang() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address, peer_timeout_s=0.5) as (_, address),
        open_session(address) as router,
    ):
        worker.heartbeat = worker_pb2.HeartbeatResponse(
            step_id=1, running_ms=400_000, waits_for_ranks=True
        )
        epoch = worker.epoch
        await router.submit(1, [5, 6, 7], LONG)
        await router.finish(1)
        assert (worker.epoch, worker.hung_steps) == (epoch, [])
