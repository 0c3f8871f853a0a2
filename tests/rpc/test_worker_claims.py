"""Groups that must not form: ranks with other models, workers that another scheduler drives."""

import asyncio
from dataclasses import replace

import pytest

from launch.cluster.supervisor import embedded_model
from quire.contract.errors import ConfigError, ModelLoadError
from quire.v1 import worker_pb2
from scheduler_svc.workers import formation
from tests.fakes.fake_worker import FAKE_MODEL, FakeWorker
from tests.rpc.router_double import running_scheduler
from tests.rpc.worker_client import Steps, init_cache, load, running_worker


@pytest.mark.parametrize(
    "other",
    [
        {"checkpoint_digest": b"other weights"},
        {"model": replace(FAKE_MODEL, num_parameters=2)},
    ],
)
async def test_ranks_that_hold_other_models_are_refused(other: dict[str, object]) -> None:
    async with FakeWorker() as first, FakeWorker(**other) as second:  # type: ignore[arg-type]
        addresses = first.address, second.address
        async with running_scheduler(*addresses, wait=False) as (scheduler, _):
            with pytest.raises(ModelLoadError, match="have different models at") as caught:
                await asyncio.wait_for(scheduler.run(), 20)
    assert all(address in caught.value.message for address in addresses)
    assert first.num_steps == second.num_steps == 0


async def test_ranks_may_hold_other_tokenizers() -> None:
    other = replace(FAKE_MODEL, text_id="of another tokenizer")
    async with (
        FakeWorker() as first,
        FakeWorker(model=other) as second,
        running_scheduler(first.address, second.address, wait=False) as (scheduler, _),
    ):
        await asyncio.wait_for(scheduler.wait_until_serving(), 20)


async def test_a_worker_that_another_scheduler_drives_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(formation, "CLAIM_PATIENCE_S", 0.3)
    async with FakeWorker(scheduler_name="other:50052") as worker:
        epoch = worker.epoch
        async with running_scheduler(worker.address, wait=False) as (scheduler, _):
            with pytest.raises(ConfigError, match="driven by the scheduler other:50052"):
                await asyncio.wait_for(scheduler.run(), 20)
        assert (worker.epoch, worker.load_requests) == (epoch, [])


async def test_a_worker_is_taken_once_its_scheduler_has_let_go() -> None:
    async with FakeWorker(scheduler_name="other:50052") as worker:
        async with running_scheduler(worker.address, wait=False) as (scheduler, _):
            serving = asyncio.create_task(scheduler.wait_until_serving())
            done, _ = await asyncio.wait({serving}, timeout=0.3)
            assert not done
            worker.scheduler_name = ""
            await asyncio.wait_for(serving, 20)
        assert worker.load_requests[0].scheduler_name


async def test_a_worker_names_its_scheduler_while_that_has_a_stream() -> None:
    async with running_worker() as stub:

        async def driver() -> str:
            return (await stub.Describe(worker_pb2.DescribeRequest())).scheduler_name

        await load(stub, embedded_model(), scheduler_name="here:1")
        await init_cache(stub)
        assert await driver() == ""
        steps = Steps(stub, epoch=1)
        async with asyncio.timeout(20):
            # An idle scheduler drives it too.
            while await driver() != "here:1":
                await asyncio.sleep(0.01)
        await steps.run()
        assert await driver() == "here:1"
        await steps.call.done_writing()
        with pytest.raises(EOFError):
            await steps.receive()
        assert await driver() == ""
