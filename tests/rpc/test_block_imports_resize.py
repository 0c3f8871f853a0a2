"""Requests whose blocks are on their way when other workers take over: none is lost or differs."""

import asyncio

import grpc

from quire.contract.sampling_params import SamplingParams
from tests.fakes.fake_worker import FakeWorker
from tests.rpc.test_block_imports import (
    NUM_BEFORE,
    PARAMS,
    PROMPT,
    SOURCE,
    TOKENS,
    Setup,
    Transport,
    running,
)
from tests.rpc.test_resize import MODEL, PHASES, refused, resize


async def until_due(setup: Setup) -> None:
    """Wait until other workers are ready to take over; a step must be held back."""
    async with asyncio.timeout(20):
        while not setup.scheduler._driver._resizing.is_due:
            await asyncio.sleep(0.005)


async def test_what_is_on_its_way_is_computed_by_other_workers() -> None:
    async with (
        FakeWorker(num_blocks=50, model=MODEL) as first,
        FakeWorker(num_blocks=50, model=MODEL) as second,
        running(MODEL) as setup,
    ):
        setup.transport.allowed.clear()
        await setup.submit_moved()
        await setup.until_ordered()
        responses = await resize(setup.address, first, second)
        assert [each.phase for each in responses] == PHASES
        # It waits for nothing: the fetch has not ended.
        await setup.router.finish(1)
        assert setup.router.tokens[1] == TOKENS[NUM_BEFORE:]
        await setup.assert_all_is_free()
        driver = setup.scheduler._driver
        assert driver.cell is not None
        assert driver.cell.blocks.num_blocks == 50


async def test_other_workers_fetch_from_as_many_as_they_are() -> None:
    async with (
        FakeWorker(model=MODEL) as first,
        FakeWorker(model=MODEL) as second,
        running(MODEL) as setup,
    ):
        await resize(setup.address, first, second)
        for worker in (first, second):
            transport = Transport(worker)
            transport.allowed.set()
            worker.on_import = transport.bring
        source = (SOURCE[0], "127.0.0.1:2")
        before = TOKENS[:NUM_BEFORE]
        await setup.router.submit(1, PROMPT, PARAMS, before, block_source=source)
        await setup.router.finish(1)
        assert setup.router.tokens[1] == TOKENS[NUM_BEFORE:]
        assert [each.imports[0].source for each in (first, second)] == list(source)
        # From one: computed.
        await setup.router.submit(2, PROMPT[1:], PARAMS, before, block_source=SOURCE)
        await setup.router.finish(2)
        assert len(first.imports) == 1
        assert not setup.worker.imports
        await setup.assert_all_is_free()


async def test_nothing_is_fetched_by_workers_that_are_about_to_be_replaced() -> None:
    async with FakeWorker(model=MODEL) as new, running(MODEL) as setup:
        setup.worker.steps_allowed.clear()
        await setup.router.submit(1, PROMPT[1:], PARAMS)
        await setup.router.until(lambda r: 1 in r.seeds)
        resizing = asyncio.create_task(resize(setup.address, new))
        await until_due(setup)
        await setup.submit_moved(2)
        # Queued at once, though the step that is in flight does not end.
        await setup.router.until(lambda r: 2 in r.seeds)
        setup.worker.steps_allowed.set()
        assert [each.phase for each in await resizing] == PHASES
        await setup.router.finish(1, 2)
        assert setup.router.tokens[2] == TOKENS[NUM_BEFORE:]
        assert not setup.worker.imports
        await setup.assert_all_is_free()


async def test_blocks_on_their_way_stay_taken_if_other_workers_are_refused() -> None:
    wide = SamplingParams(n=4, seed=1, max_tokens=100, ignore_eos=True)
    async with (
        # Four sequences would have 24 blocks each, for 97 tokens.
        FakeWorker(num_blocks=99, model=MODEL) as new,
        running(MODEL, num_blocks=128) as setup,
    ):
        setup.transport.allowed.clear()
        await setup.submit_moved()
        await setup.until_ordered()
        setup.worker.steps_allowed.clear()
        await setup.router.submit(2, [5, 6], wide)
        await setup.router.until(lambda r: 2 in r.seeds)
        refusal = asyncio.create_task(resize(setup.address, new))
        await until_due(setup)
        setup.worker.steps_allowed.set()
        async with refused(grpc.StatusCode.FAILED_PRECONDITION, "must leave a cache"):
            await refusal
        driver = setup.scheduler._driver
        assert driver.cell is not None
        # The workers in use may still write to them.
        assert driver.cell.blocks.reserved
        await setup.router.finish(1, 2)
        assert setup.router.tokens[1] == TOKENS[NUM_BEFORE:]
        assert driver.cell.blocks.reserved
        setup.transport.allowed.set()
        await setup.assert_all_is_free()
        assert driver.arrivals.num_fetched
