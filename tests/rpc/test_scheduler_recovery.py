"""Workers that die, routers that do not read: over real gRPC, with fake workers."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.contract.errors import ModelLoadError, OverloadedError, UnavailableError
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Queued
from quire.contract.steps import SchedulerOutputs
from quire.rpc import open_channel
from quire.v1 import scheduler_pb2_grpc, worker_pb2
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.sessions.session import RouterSession
from scheduler_svc.workers.worker_set import WorkerSet
from tests.fakes.fake_model import fake_generate
from tests.fakes.fake_worker import FAKE_MODEL, FakeWorker
from tests.rpc.router_double import RouterDouble, open_session, running_scheduler

NUM_REQUESTS = 12


def make_params(number: int) -> SamplingParams:
    return SamplingParams(temperature=number % 2, seed=number, max_tokens=60, ignore_eos=True)


def make_prompt(number: int) -> list[int]:
    return [number * k % FAKE_MODEL.vocab_size for k in range(1, number + 2)]


async def submit_all(router: RouterDouble) -> None:
    for number in range(1, NUM_REQUESTS + 1):
        await router.submit(number, make_prompt(number), make_params(number))


async def check_all(router: RouterDouble, max_model_len: int) -> None:
    await router.finish(*range(1, NUM_REQUESTS + 1))
    for number in range(1, NUM_REQUESTS + 1):
        assert router.tokens[number] == fake_generate(
            make_prompt(number),
            make_params(number),
            vocab_size=FAKE_MODEL.vocab_size,
            max_model_len=max_model_len,
        )


async def health(address: str) -> int:
    async with open_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        response = await stub.Check(health_pb2.HealthCheckRequest())
        status: int = response.status
        return status


async def until_health(address: str, status: int) -> None:
    async with asyncio.timeout(20), open_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        try:
            async for response in watch:
                if response.status == status:
                    return
        finally:
            watch.cancel()


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_worker_killed_in_mid_run_changes_no_token() -> None:
    async with FakeWorker(num_blocks=30) as worker:
        port = int(worker.address.rpartition(":")[2])
        async with (
            running_scheduler(worker.address, max_num_seqs=8) as (_, at),
            open_session(at) as router,
        ):
            assert await health(at) == SERVING
            await submit_all(router)
            for _ in range(3):
                steps = worker.num_steps
                await worker.wait_steps(steps + 15)
                epoch = worker.epoch
                await worker.kill()
                await until_health(at, NOT_SERVING)
                worker = FakeWorker(num_blocks=99, port=port)  # noqa: PLW2901
                await worker.__aenter__()
                await until_health(at, SERVING)
                assert worker.epoch > epoch
                assert worker.fake is not None
                assert worker.fake.num_blocks == 30, "the limits that routers know stay"
            await check_all(router, max_model_len=120)
            await router.until(lambda r: r.states[-1].num_running == 0)
            assert router.states[-1].epoch == worker.epoch
            assert router.states[-1].num_free_blocks == 30
        await worker.__aexit__(None, None, None)


async def test_a_rank_with_other_tokens_is_formed_anew_and_changes_no_token() -> None:
    async with (
        FakeWorker() as first,
        FakeWorker() as second,
        running_scheduler(first.address, second.address) as (_, at),
        open_session(at) as router,
    ):
        await submit_all(router)
        epochs = [first.epoch]
        for _ in range(2):
            await second.wait_steps(second.num_steps + 5)
            second.mistakes_next_token = True
            async with asyncio.timeout(20):
                while first.epoch == epochs[-1]:
                    await first.wait_steps(first.num_steps + 1)
            epochs.append(first.epoch)
        await check_all(router, max_model_len=FAKE_MODEL.max_model_len)
        assert not second.mistakes_next_token


async def test_routers_learn_at_once_that_the_workers_are_lost_and_back() -> None:
    async with FakeWorker() as worker:
        port = int(worker.address.rpartition(":")[2])
        async with (
            running_scheduler(worker.address) as (_, at),
            open_session(at) as router,
        ):
            worker.steps_allowed.clear()
            await submit_all(router)
            await router.until(lambda r: len(r.seeds) == NUM_REQUESTS)
            await worker.kill()
            await router.until(lambda r: bool(r.states) and r.states[-1].workers_lost)
            assert router.states[-1].num_running == 0
            async with FakeWorker(port=port):
                await router.until(lambda r: not r.states[-1].workers_lost)
                await check_all(router, max_model_len=256)


async def test_one_rank_killed_re_forms_the_group_and_the_other_keeps_its_place() -> None:
    async with FakeWorker(num_blocks=30) as first, FakeWorker(num_blocks=30) as second:
        port = int(second.address.rpartition(":")[2])
        async with (
            running_scheduler(first.address, second.address) as (_, at),
            open_session(at) as router,
        ):
            await submit_all(router)
            await second.wait_steps(20)
            await second.kill()
            async with FakeWorker(port=port) as restarted:
                await check_all(router, max_model_len=120)
                assert restarted.num_steps > 0
            assert [load.tensor_parallel_rank for load in first.load_requests] == [0, 0]
            assert first.load_requests[0].epoch < first.load_requests[1].epoch


async def test_a_restarted_worker_may_have_less_host_memory() -> None:
    async with FakeWorker(num_blocks=30, num_host_blocks=60) as worker:
        port = int(worker.address.rpartition(":")[2])
        async with (
            running_scheduler(worker.address, preemption_mode="swap") as (_, at),
            open_session(at) as router,
        ):
            await submit_all(router)
            await worker.wait_steps(30)
            await worker.kill()
            async with FakeWorker(port=port, num_host_blocks=8) as restarted:
                await check_all(router, max_model_len=120)
                await router.until(lambda r: r.states[-1].num_running == 0)
                assert router.states[-1].num_host_blocks == 8
                assert router.states[-1].num_free_host_blocks == 8
                assert len(restarted.load_requests) == 1, "it was lost once"


async def test_a_gap_re_forms_the_group() -> None:
    class Forgetful(FakeWorker):
        """Loses its place once, at step 10."""

        async def Execute(self, requests, context):  # type: ignore[no-untyped-def]
            async for response in super().Execute(requests, context):
                if self.num_steps == 10:
                    gap = worker_pb2.StepGap(expected_step_id=3, received_step_id=10)
                    yield worker_pb2.ExecuteResponse(gap=gap)
                    return
                yield response

    async with (
        Forgetful(num_blocks=30) as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        await submit_all(router)
        await check_all(router, max_model_len=120)
        assert len(worker.load_requests) == 2


async def test_a_worker_without_a_cache_is_formed_again() -> None:
    """As one that starts anew at the address of another, and receives the stream of that one."""
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        epoch, worker.fake = worker.epoch, None
        await router.submit(1, make_prompt(1), make_params(1))
        await router.finish(1)
        assert worker.epoch > epoch


async def test_a_worker_lost_while_idle_is_noticed_and_work_waits_for_the_next() -> None:
    async with FakeWorker(num_blocks=30) as worker:
        port = int(worker.address.rpartition(":")[2])
        async with (
            running_scheduler(worker.address) as (_, at),
            open_session(at) as router,
        ):
            await worker.kill()
            await until_health(at, NOT_SERVING)
            await submit_all(router)
            await router.until(lambda r: len(r.seeds) == NUM_REQUESTS)
            assert router.tokens == {}
            async with FakeWorker(num_blocks=30, port=port):
                await check_all(router, max_model_len=120)


async def test_a_session_opened_while_the_group_re_forms_is_welcomed_when_it_has() -> None:
    async with FakeWorker(num_blocks=30) as worker:
        port = int(worker.address.rpartition(":")[2])
        async with running_scheduler(worker.address) as (_, at):
            await worker.kill()
            await until_health(at, NOT_SERVING)
            async with (
                FakeWorker(num_blocks=30, port=port) as restarted,
                open_session(at) as router,
            ):
                assert router.welcome is not None
                assert router.welcome.epoch == restarted.epoch
                await submit_all(router)
                await check_all(router, max_model_len=120)


async def test_a_restarted_worker_that_cannot_load_is_retried_until_it_can() -> None:
    async with FakeWorker(num_blocks=30) as worker:
        port = int(worker.address.rpartition(":")[2])
        async with (
            running_scheduler(worker.address) as (_, at),
            open_session(at) as router,
        ):
            await worker.kill()
            await submit_all(router)
            async with FakeWorker(port=port, load_error=ModelLoadError("no such directory")) as bad:
                while len(bad.load_requests) < 2:
                    await asyncio.sleep(0.02)
                assert await health(at) == NOT_SERVING
            async with FakeWorker(port=port):
                await check_all(router, max_model_len=120)


async def test_a_step_on_a_lost_stream_is_an_error() -> None:
    async with FakeWorker() as worker:
        lost = asyncio.Event()
        config = SchedulerConfig(model="/m", served_model_name="m", workers=(worker.address,))
        workers = WorkerSet(config, lost.set)
        try:
            await workers.form("test")
            empty = SchedulerOutputs()
            await workers.send(empty)
            assert (await workers.receive()).result.step_id == 1
            assert workers.num_in_flight == 0
            await worker.kill()
            await asyncio.wait_for(lost.wait(), 20)
            assert workers.is_lost
            with pytest.raises(UnavailableError, match=worker.address):
                await workers.send(empty)
                await workers.receive()
        finally:
            await workers.close()


# ---------------------------------------------------------------- slow routers


async def test_a_session_that_is_not_read_ends_instead_of_growing() -> None:
    session = RouterSession(max_unsent_events=3)
    for number in range(3):
        session.push(Queued(number, seed=0))
    session.push(Queued(3, seed=0))
    assert session.ended.is_set()
    assert isinstance(session.error, OverloadedError)
    assert "3 messages unread" in session.error.message
    assert [event async for event in session.events()] == []


async def test_a_router_that_stops_reading_loses_its_session_and_frees_its_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler_svc.driver.MAX_UNSENT_EVENTS", 16)
    # The smallest windows, so that they fill at once.
    small = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024))
    async with (
        FakeWorker(num_blocks=60) as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as other,
        grpc.aio.insecure_channel(at, options=small) as channel,
    ):
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Session()
        silent = RouterDouble(call)
        try:
            await call.read()
            worker.steps_allowed.clear()
            await silent.submit(0, [5] * 100, make_params(1))
            await other.until(lambda r: bool(r.states) and r.states[-1].num_running == 1)
            for number in range(1, 3000):
                await silent.submit(number, [], make_params(1))
            # No step can end, so that only the end of the session frees its blocks.
            await other.until(lambda r: r.states[-1].num_free_blocks == 60)
            worker.steps_allowed.set()
            # The cell is as good as before, and the silent router gets an error when it reads.
            await other.submit(1, [5], make_params(1))
            await other.finish(1)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(silent.read(), 20)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert len(silent.refused) < 2999
        finally:
            call.cancel()
