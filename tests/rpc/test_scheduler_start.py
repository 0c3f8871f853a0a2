"""How a scheduler forms its cell from workers, and refuses to, over real gRPC with fake workers."""

import asyncio

import pytest

from quire.contract.errors import ConfigError, ModelLoadError, StaleEpochError
from quire.rpc import open_channel
from quire.v1 import worker_pb2, worker_pb2_grpc
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.workers.worker_set import WorkerSet
from tests.fakes.fake_worker import FakeWorker
from tests.rpc.router_double import open_session, running_scheduler
from tests.rpc.scheduler_requests import LONG

DAY_MS = 86_400_000

# ---------------------------------------------------------------- starting


async def test_welcome_describes_the_cell() -> None:
    async with (
        FakeWorker(num_blocks=20) as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        assert router.welcome is not None
        assert router.welcome.epoch == worker.epoch == router.welcome.cell_state.epoch
        assert router.welcome.model.name == "fake"
        assert router.welcome.model.max_model_len == 80, "clamped to 20 blocks of 4"
        assert router.welcome.cell_state.num_free_blocks == 20
        assert router.welcome.cell_state.block_size == 4


async def test_state_is_reported_while_idle() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        await router.until(lambda r: len(r.states) >= 2)
        assert router.states[-1].steps_total == 0


@pytest.mark.parametrize("max_model_len", [None, 40])
async def test_the_cache_can_be_set_and_a_given_length_is_kept(max_model_len: int | None) -> None:
    settings = {"num_gpu_blocks_override": 10, "max_model_len": max_model_len}
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address, **settings) as (_, at),
        open_session(at) as router,
    ):
        assert router.welcome is not None
        assert router.welcome.cell_state.num_blocks == 10
        assert router.welcome.model.max_model_len == 40


async def failed_start(worker: FakeWorker, **settings: object) -> Exception:
    async with running_scheduler(worker.address, wait=False, **settings) as (scheduler, _):
        with pytest.raises((ConfigError, ModelLoadError, StaleEpochError)) as caught:
            await asyncio.wait_for(scheduler.run(), 20)
    return caught.value


async def test_a_length_that_does_not_fit_the_cache_is_a_config_error() -> None:
    async with FakeWorker(num_blocks=10) as worker:
        error = await failed_start(worker, max_model_len=41)
    assert isinstance(error, ConfigError)
    assert "max_model_len" in error.message
    assert "40" in error.message
    assert "41" in error.message


async def test_a_cache_without_blocks_is_a_config_error() -> None:
    async with FakeWorker(num_blocks=0) as worker:
        error = await failed_start(worker, kv_cache_gib=10 / 2**30)
    assert isinstance(error, ConfigError)
    assert "64 bytes, got 10" in error.message


async def test_a_draft_model_on_a_gpu_wants_the_same_bits_for_any_batch() -> None:
    options = {"speculation": "draft-model", "draft_model": "draft"}
    async with FakeWorker(device="cuda:0") as worker:
        error = await failed_start(worker, **options)
    assert isinstance(error, ConfigError)
    assert error.message == "invariant: must be true for a draft model on GPUs, got false"
    assert worker.load_requests == []


async def test_an_unusable_model_ends_the_start_with_the_workers_words() -> None:
    async with FakeWorker(load_error=ModelLoadError("model.safetensors is missing")) as worker:
        error = await failed_start(worker)
    assert isinstance(error, ModelLoadError)
    assert error.message == "model.safetensors is missing"


async def test_one_rank_that_cannot_load_fails_the_start_of_all() -> None:
    async with (
        FakeWorker() as good,
        FakeWorker(load_error=ModelLoadError("wrong shape")) as bad,
    ):
        addresses = (good.address, bad.address)
        async with running_scheduler(*addresses, wait=False) as (scheduler, _):
            with pytest.raises(ModelLoadError, match="wrong shape"):
                await asyncio.wait_for(scheduler.run(), 20)


async def test_a_worker_that_starts_late_is_waited_for() -> None:
    async with FakeWorker() as probe:
        port = int(probe.address.rpartition(":")[2])
    async with running_scheduler(f"127.0.0.1:{port}", wait=False) as (scheduler, _):
        waiting = asyncio.create_task(scheduler.wait_until_serving())
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not done
        async with FakeWorker(port=port):
            await asyncio.wait_for(waiting, 20)


# ---------------------------------------------------------------- epochs


async def test_the_epoch_is_above_the_clock_and_what_workers_have_seen() -> None:
    config = {"model": "/m", "served_model_name": "m", "block_size": 4}
    async with FakeWorker() as worker:
        starts = [
            WorkerSet(SchedulerConfig(workers=(worker.address,), **config), lambda: None)  # type: ignore[arg-type]
            for _ in range(2)
        ]
        try:
            first = (await starts[0].form("test")).epoch
            second = (await starts[0].form("test")).epoch
            worker.epoch = far_future = second + DAY_MS
            with pytest.raises(StaleEpochError, match=f"obeys epoch {far_future} of another"):
                await starts[0].form("test")
            third = (await starts[1].form("test")).epoch
        finally:
            for workers in starts:
                await workers.close()
    assert 100_000_000_000 < first < second < far_future < third


async def test_ranks_with_unlike_gpus_are_refused() -> None:
    gpu = "NVIDIA H200, 132 multiprocessors"
    async with FakeWorker(gpu=gpu) as first, FakeWorker(gpu=gpu) as second, FakeWorker() as other:
        async with running_scheduler(first.address, second.address):
            assert first.load_requests and second.load_requests
        async with running_scheduler(first.address, other.address, wait=False) as (scheduler, _):
            with pytest.raises(ConfigError) as caught:
                await asyncio.wait_for(scheduler.run(), 20)
    assert str(caught.value) == (
        f"workers: must have GPUs of one kind, got {gpu} (rank 0) and a CPU (rank 1)"
    )
    assert not other.load_requests


async def test_a_superseded_scheduler_stops_and_its_orders_are_refused() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (scheduler, at),
        open_session(at) as router,
    ):
        await router.submit(1, [5], LONG)
        await router.until(lambda r: 1 in r.tokens)
        worker.steps_allowed.clear()
        async with open_channel(worker.address) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            await stub.Reset(worker_pb2.ResetRequest(epoch=worker.epoch + 1))
            steps = worker.num_steps
            worker.steps_allowed.set()
            with pytest.raises(StaleEpochError):
                await asyncio.wait_for(scheduler.run(), 20)
            assert worker.num_steps == steps
