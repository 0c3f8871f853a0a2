"""Other workers take over from those of a cell that serves: over real gRPC, with fake workers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from quire.contract.errors import ConfigError, ModelLoadError, UnavailableError
from quire.contract.sampling_params import SamplingParams
from quire.rpc import open_channel
from quire.v1 import scheduler_pb2, scheduler_pb2_grpc
from quire.version import __version__
from tests.fakes.fake_worker import FAKE_MODEL, FakeWorker
from tests.rpc.router_double import open_session, running_scheduler
from tests.rpc.scheduler_requests import reference
from tests.rpc.test_scheduler_recovery import (
    NUM_REQUESTS,
    SERVING,
    check_all,
    health,
    make_prompt,
    submit_all,
    until_health,
)

MODEL = replace(FAKE_MODEL, numerics_id="n1", max_model_len=120)
LONG = SamplingParams(seed=1, max_tokens=80, ignore_eos=True)
PHASES = [
    scheduler_pb2.RESIZE_PHASE_LOADING,
    scheduler_pb2.RESIZE_PHASE_SWITCHED,
    scheduler_pb2.RESIZE_PHASE_DONE,
]


async def resize(
    at: str, *workers: FakeWorker | str, timeout_s: int = 0
) -> list[scheduler_pb2.ResizeResponse]:
    addresses = [each if isinstance(each, str) else each.address for each in workers]
    async with open_channel(at) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        request = scheduler_pb2.ResizeRequest(workers=addresses, timeout_s=timeout_s)
        return [each async for each in stub.Resize(request, timeout=60)]


@asynccontextmanager
async def refused(code: grpc.StatusCode, *words: str) -> AsyncIterator[None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    assert caught.value.code() is code, caught.value.details()
    for word in words:
        assert word in (caught.value.details() or "")


async def test_workers_of_other_numbers_take_over_in_mid_run_and_no_token_changes() -> None:
    async with (
        FakeWorker(num_blocks=150, model=MODEL) as alone,
        FakeWorker(num_blocks=170, model=MODEL) as first,
        FakeWorker(num_blocks=160, model=MODEL) as second,
        FakeWorker(num_blocks=30, model=MODEL) as last,
        running_scheduler(alone.address, max_num_seqs=8) as (scheduler, at),
        open_session(at) as router,
    ):
        await submit_all(router)
        await alone.wait_steps(15)
        alone.steps_allowed.clear()
        resizing = asyncio.create_task(resize(at, first, second))
        async with asyncio.timeout(20):
            while not scheduler._driver._resizing.is_due:
                await asyncio.sleep(0.01)
        alone.steps_allowed.set()
        responses = await resizing
        assert [each.phase for each in responses] == PHASES
        assert responses[1].num_moved == responses[2].num_moved == 8
        # No step goes to the old worker any more, and the new ones share the work.
        steps = alone.num_steps
        assert first.num_steps > 0
        assert [each.load_requests[0].tensor_parallel_rank for each in (first, second)] == [0, 1]
        assert first.load_requests[0].tensor_parallel_size == 2
        assert first.epoch == second.epoch > alone.epoch
        # The least of what both have.
        await router.until(lambda r: r.states[-1].num_blocks == 160)
        assert [each.phase for each in await resize(at, last)] == PHASES
        await check_all(router, max_model_len=120)
        assert alone.num_steps == steps
        await router.until(lambda r: r.states[-1].num_running == 0)
        assert not any(each.workers_lost for each in router.states)
        assert not router.suspected
        state = router.states[-1]
        assert (state.epoch, state.num_blocks, state.num_free_blocks) == (last.epoch, 30, 30)
        assert scheduler._driver.workers.num_formations == 3


async def test_an_idle_cell_is_resized_and_its_cache_is_reported_empty() -> None:
    async with (
        FakeWorker(model=MODEL) as old,
        FakeWorker(model=MODEL) as new,
        running_scheduler(old.address) as (_, at),
        open_session(at) as router,
    ):
        await router.submit(1, make_prompt(9), LONG)
        await router.finish(1)
        await router.until(lambda r: bool(r.block_hashes))
        responses = await resize(at, new)
        assert [(each.phase, each.num_moved) for each in responses] == [(p, 0) for p in PHASES]
        await router.until(lambda r: not r.block_hashes)
        await router.submit(2, make_prompt(9), LONG)
        await router.finish(2)
        assert router.tokens[2] == router.tokens[1] == reference(make_prompt(9), LONG, 120)


async def test_workers_lost_after_a_resize_are_formed_again_at_their_new_addresses() -> None:
    async with FakeWorker(model=MODEL) as old, FakeWorker(model=MODEL) as new:
        port = int(new.address.rpartition(":")[2])
        async with running_scheduler(old.address) as (_, at), open_session(at) as router:
            await submit_all(router)
            await resize(at, new)
            await new.kill()
            async with FakeWorker(model=MODEL, port=port):
                await check_all(router, max_model_len=120)


@pytest.mark.parametrize(
    ("new", "code", "words"),
    [
        (
            lambda: FakeWorker(model=MODEL, load_error=ModelLoadError("heads: must divide by 3")),
            grpc.StatusCode.FAILED_PRECONDITION,
            "heads: must divide by 3",
        ),
        (
            lambda: FakeWorker(model=MODEL, load_error=ConfigError("kv_cache_gib: too little")),
            grpc.StatusCode.FAILED_PRECONDITION,
            "kv_cache_gib",
        ),
        (
            lambda: FakeWorker(model=replace(MODEL, numerics_id="n2")),
            grpc.StatusCode.FAILED_PRECONDITION,
            "numerics_id: must be n1, as of the workers in use, got n2",
        ),
        (
            lambda: FakeWorker(model=MODEL, checkpoint_digest=b"other"),
            grpc.StatusCode.FAILED_PRECONDITION,
            "changed while it was served",
        ),
        (
            lambda: FakeWorker(model=MODEL, num_blocks=29),
            grpc.StatusCode.FAILED_PRECONDITION,
            "must leave a cache of at least 120 tokens",
        ),
        (
            # Each of four sequences would have 24 blocks, for 97 tokens.
            lambda: FakeWorker(model=MODEL, num_blocks=99),
            grpc.StatusCode.FAILED_PRECONDITION,
            "must leave a cache for 4 x 101 tokens",
        ),
    ],
    ids=["load", "config", "numerics", "digest", "max_model_len", "cache"],
)
async def test_what_cannot_take_over_is_refused_and_the_old_workers_go_on(
    new: Callable[[], FakeWorker], code: grpc.StatusCode, words: str
) -> None:
    wide = SamplingParams(n=4, seed=1, max_tokens=100, ignore_eos=True)
    async with (
        FakeWorker(model=MODEL, num_blocks=128) as old,
        new() as candidate,
        running_scheduler(old.address) as (_, at),
        open_session(at) as router,
        open_session(at) as other,
    ):
        old.steps_allowed.clear()
        await other.submit(99, make_prompt(0), wide)
        await other.until(lambda r: 99 in r.seeds)
        await submit_all(router)
        await router.until(lambda r: len(r.seeds) == NUM_REQUESTS)
        refusal = asyncio.create_task(resize(at, candidate))
        old.steps_allowed.set()
        async with refused(code, words):
            await refusal
        assert candidate.num_steps == 0
        assert await health(at) == SERVING
        await check_all(router, max_model_len=120)
        assert len(old.load_requests) == 1


@pytest.mark.parametrize(
    ("addresses", "words"),
    [
        ([], "workers: must be at least 1 address, got 0"),
        (["nowhere"], "workers: must"),
        (["old"], "workers: must not be in use"),
    ],
)
async def test_addresses_that_cannot_be_used_are_refused(addresses: list[str], words: str) -> None:
    async with (
        FakeWorker(model=MODEL) as old,
        running_scheduler(old.address) as (_, at),
        refused(grpc.StatusCode.INVALID_ARGUMENT, words),
    ):
        await resize(at, *(old.address if each == "old" else each for each in addresses))


async def test_workers_that_announce_themselves_are_not_replaced() -> None:
    async with (
        FakeWorker(model=MODEL) as old,
        FakeWorker(model=MODEL) as new,
        running_scheduler(tensor_parallel_size=1, wait=False) as (scheduler, at),
    ):
        async with open_channel(at) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            await stub.AnnounceWorker(
                scheduler_pb2.AnnounceWorkerRequest(
                    rank=0, address=old.address, version=__version__
                )
            )
        await asyncio.wait_for(scheduler.wait_until_serving(), 20)
        async with refused(grpc.StatusCode.FAILED_PRECONDITION, "announce themselves"):
            await resize(at, new)


async def test_without_invariance_only_an_idle_cell_is_resized() -> None:
    model = replace(MODEL, numerics_id="")
    async with (
        FakeWorker(model=model) as old,
        FakeWorker(model=model) as new,
        running_scheduler(old.address) as (_, at),
        open_session(at) as router,
    ):
        old.steps_allowed.clear()
        await router.submit(1, make_prompt(1), LONG)
        await router.until(lambda r: 1 in r.seeds)
        async with refused(
            grpc.StatusCode.FAILED_PRECONDITION, "invariant: must be true", "1 requests"
        ):
            await resize(at, new)
        assert not new.load_requests, "refused before anything is loaded"
        old.steps_allowed.set()
        await router.finish(1)
        assert (await resize(at, new))[-1].phase == scheduler_pb2.RESIZE_PHASE_DONE


class SlowFakeWorker(FakeWorker):
    """Never has the model loaded."""

    async def LoadModel(self, request, context):  # type: ignore[no-untyped-def]
        self.load_requests.append(request)
        await asyncio.Event().wait()


async def test_a_cell_that_drains_gives_up_workers_that_load() -> None:
    async with (
        FakeWorker(model=MODEL) as old,
        SlowFakeWorker(model=MODEL) as slow,
        running_scheduler(old.address) as (scheduler, at),
        open_session(at) as router,
    ):
        await submit_all(router)
        await old.wait_steps(2)
        resizing = asyncio.create_task(resize(at, slow))
        async with asyncio.timeout(20):
            while not slow.load_requests:
                await asyncio.sleep(0.01)
        drain = asyncio.create_task(scheduler._driver.drain(move=False))
        async with refused(grpc.StatusCode.UNAVAILABLE, "the cell drains"):
            await resizing
        await check_all(router, max_model_len=120)
        assert await drain == 0
        assert slow.num_steps == 0


async def test_a_cell_that_drains_gives_up_workers_in_the_turn_in_which_they_are_ready() -> None:
    async with (
        FakeWorker(model=MODEL) as old,
        FakeWorker(model=MODEL) as new,
        running_scheduler(old.address) as (scheduler, at),
        open_session(at) as router,
    ):
        resizing = scheduler._driver._resizing
        switch = resizing.switch

        async def give_up_first(*arguments: Any) -> None:
            resizing.give_up(UnavailableError("the cell drains"))
            await switch(*arguments)

        resizing.switch = give_up_first
        await submit_all(router)
        async with refused(grpc.StatusCode.UNAVAILABLE, "the cell drains"):
            await resize(at, new)
        await check_all(router, max_model_len=120)
        assert new.num_steps == 0
        assert scheduler._driver.workers.num_formations == 1
        resizing.switch = switch
        assert [each.phase for each in await resize(at, new)] == PHASES


async def test_workers_that_are_not_ready_in_time_are_given_up() -> None:
    async with (
        FakeWorker(model=MODEL) as old,
        SlowFakeWorker(model=MODEL) as slow,
        FakeWorker(model=MODEL) as new,
        running_scheduler(old.address) as (_, at),
        open_session(at) as router,
    ):
        await submit_all(router)
        async with refused(grpc.StatusCode.UNAVAILABLE, "not ready within 1 s", "go on"):
            await resize(at, slow, timeout_s=1)
        # Nothing is left of it in the way of another one.
        assert [each.phase for each in await resize(at, new)] == PHASES
        await check_all(router, max_model_len=120)


async def test_a_resize_that_its_caller_gives_up_changes_nothing() -> None:
    loading = asyncio.Event()

    class SlowFakeWorker(FakeWorker):
        """Never has the model loaded."""

        async def LoadModel(self, request, context):  # type: ignore[no-untyped-def]
            loading.set()
            await asyncio.Event().wait()

    async with (
        FakeWorker(model=MODEL) as old,
        SlowFakeWorker(model=MODEL) as slow,
        FakeWorker(model=MODEL) as new,
        running_scheduler(old.address) as (scheduler, at),
        open_session(at) as router,
    ):
        await submit_all(router)
        given_up = asyncio.create_task(resize(at, slow))
        await loading.wait()
        async with refused(grpc.StatusCode.FAILED_PRECONDITION, "must be the only one"):
            await resize(at, new)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        async with asyncio.timeout(20):
            while scheduler._driver._resizing._is_under_way:
                await asyncio.sleep(0.01)
        assert [each.phase for each in await resize(at, new)] == PHASES
        await check_all(router, max_model_len=120)


async def test_workers_in_use_that_are_lost_meanwhile_end_the_resize_and_are_formed_again() -> None:
    loading, may_load = asyncio.Event(), asyncio.Event()

    class LateFakeWorker(FakeWorker):
        """Has the model loaded when it may."""

        async def LoadModel(self, request, context):  # type: ignore[no-untyped-def]
            loading.set()
            await may_load.wait()
            return await super().LoadModel(request, context)

    async with FakeWorker(model=MODEL) as old, LateFakeWorker(model=MODEL) as late:
        port = int(old.address.rpartition(":")[2])
        async with running_scheduler(old.address) as (_, at), open_session(at) as router:
            await submit_all(router)
            resizing = asyncio.create_task(resize(at, late))
            await loading.wait()
            await old.kill()
            await router.until(lambda r: bool(r.states) and r.states[-1].workers_lost)
            async with FakeWorker(model=MODEL, port=port) as again:
                await until_health(at, SERVING)
                may_load.set()
                async with refused(grpc.StatusCode.UNAVAILABLE, "lost meanwhile"):
                    await resizing
                await check_all(router, max_model_len=120)
                assert late.num_steps == 0 < again.num_steps
