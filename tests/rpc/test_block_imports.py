"""Requests that come from another cell: their blocks are fetched, and the tokens never differ."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from quire.contract.block_shipping import ImportOrder, ImportResult
from quire.contract.errors import ConfigError
from quire.contract.outputs import ModelInfo
from quire.contract.sampling_params import SamplingParams
from quire.rpc import open_channel
from quire.v1 import scheduler_pb2, scheduler_pb2_grpc
from scheduler_svc.sequences.fetch_times import LASTS_S
from scheduler_svc.server import SchedulerServer
from tests.fakes.fake_worker import FAKE_MODEL, FakeWorker
from tests.rpc.router_double import RouterDouble, open_session, running_scheduler
from tests.rpc.scheduler_requests import LONG, reference

SOURCE = ("127.0.0.1:1",)
PARAMS = SamplingParams(seed=1, max_tokens=20, ignore_eos=True)
PROMPT = list(range(3, 43))
TOKENS = reference(PROMPT, PARAMS)
NUM_BEFORE = 9
# Full blocks of 4 tokens, but what the last token is in.
NUM_FULL = (len(PROMPT) + NUM_BEFORE - 1) // 4


@dataclass
class Transport:
    """What imports bring.

    Attributes:
        worker: of the cell.
        num_blocks: how many of the blocks come.
        error: raised instead.
        allowed: until it is set, imports wait.
    """

    worker: FakeWorker
    num_blocks: int = 1000
    error: Exception | None = None
    allowed: asyncio.Event = field(default_factory=asyncio.Event)

    async def bring(self, order: ImportOrder) -> ImportResult:
        await self.allowed.wait()
        if self.error is not None:
            raise self.error
        assert self.worker.fake is not None
        blocks = order.blocks[: self.num_blocks]
        for block in blocks:
            self.worker.fake.fill(block, [*PROMPT, *TOKENS])
        return ImportResult(len(blocks))


@dataclass
class Setup:
    """A cell and a router."""

    worker: FakeWorker
    transport: Transport
    scheduler: SchedulerServer
    router: RouterDouble
    address: str

    async def submit_moved(self, number: int = 1) -> None:
        before = TOKENS[:NUM_BEFORE]
        await self.router.submit(number, PROMPT, PARAMS, before, block_source=SOURCE)

    async def until_ordered(self) -> None:
        async with asyncio.timeout(30):
            while not self.worker.imports:
                await asyncio.sleep(0.005)

    async def assert_all_is_free(self) -> None:
        """No block is held in the end, and the scheduler's books agree."""
        driver = self.scheduler._driver
        assert driver.cell is not None
        async with asyncio.timeout(30):
            while driver.num_unfinished or driver.arrivals._tasks:
                await asyncio.sleep(0.005)
        blocks = driver.cell.blocks
        assert blocks.num_free_blocks == blocks.num_blocks
        driver.cell.scheduler.check_invariants()


@asynccontextmanager
async def running(
    model: ModelInfo = FAKE_MODEL, num_blocks: int = 64, **settings: object
) -> AsyncIterator[Setup]:
    async with (
        FakeWorker(model=model, num_blocks=num_blocks) as worker,
        running_scheduler(worker.address, **settings) as (scheduler, at),
        open_session(at) as router,
    ):
        transport = Transport(worker)
        transport.allowed.set()
        worker.on_import = transport.bring
        yield Setup(worker, transport, scheduler, router, at)


async def test_blocks_that_come_are_not_computed() -> None:
    async with running() as setup:
        await setup.submit_moved()
        await setup.router.finish(1)
        assert setup.router.tokens[1] == TOKENS[NUM_BEFORE:]
        (order,) = setup.worker.imports
        assert order.source == SOURCE[0]
        assert [block.depth for block in order.blocks] == list(range(1, NUM_FULL + 1))
        assert setup.worker.fake is not None
        # The rest of what it came with, and each token but the last.
        rest = len(PROMPT) + NUM_BEFORE - 4 * NUM_FULL
        assert setup.worker.fake.num_computed == rest + len(TOKENS) - NUM_BEFORE - 1
        await setup.assert_all_is_free()
        # What has come once is found.
        await setup.submit_moved(2)
        await setup.router.finish(2)
        assert len(setup.worker.imports) == 1


@pytest.mark.parametrize(
    "settings",
    [{"move_blocks": "never"}, {"enable_prefix_caching": False}, {"num_gpu_blocks_override": 64}],
)
async def test_what_does_not_come_is_computed(settings: dict[str, object]) -> None:
    async with running(**settings) as setup:
        setup.transport.num_blocks = 3
        await setup.submit_moved()
        await setup.router.finish(1)
        assert setup.router.tokens[1] == TOKENS[NUM_BEFORE:]
        assert len(setup.worker.imports) == ("num_gpu_blocks_override" in settings)
        await setup.assert_all_is_free()


async def test_a_price_that_is_too_high_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of requests that come at once those behind the first are computed, and later one is not."""
    seconds = 1000.0
    clock = SimpleNamespace(monotonic=lambda: seconds)
    monkeypatch.setattr("scheduler_svc.arrivals.time", clock)
    monkeypatch.setattr("scheduler_svc.arrivals.MAX_FETCHES", 1)
    other = SamplingParams(seed=2, max_tokens=20, ignore_eos=True)

    async def submit_other(number: int) -> None:
        before = TOKENS[:NUM_BEFORE]
        await setup.router.submit(number, [number, *PROMPT], other, before, block_source=SOURCE)

    async with running() as setup:
        driver = setup.scheduler._driver
        assert driver.cell is not None
        costs = driver.cell.scheduler.preemption_costs
        monkeypatch.setattr(type(costs), "token_us", 100.0)
        setup.transport.allowed.clear()
        await setup.submit_moved(1)
        await submit_other(2)
        await setup.until_ordered()
        async with asyncio.timeout(30):
            while len(driver.arrivals) < 2:
                await asyncio.sleep(0.005)
        # It took so long that to compute is cheaper by far.
        seconds += 60.0
        setup.transport.allowed.set()
        await submit_other(3)
        await setup.router.finish(1, 2, 3)
        assert len(setup.worker.imports) == 1
        assert driver.arrivals.num_recomputed == 2 * NUM_FULL
        seconds += LASTS_S + 1.0
        setup.transport.num_blocks = 0
        await submit_other(4)
        await setup.router.finish(4)
        assert len(setup.worker.imports) == 2


@pytest.mark.parametrize("error", [RuntimeError("planted"), ConfigError("source: planted")])
async def test_a_worker_that_fails_at_it_costs_nothing_but_time(error: Exception) -> None:
    async with running() as setup:
        setup.transport.error = error
        await setup.submit_moved()
        await setup.router.finish(1)
        assert setup.router.tokens[1] == TOKENS[NUM_BEFORE:]
        await setup.assert_all_is_free()
        # It is not asked again at once: each of many requests would wait for nothing.
        before = TOKENS[: NUM_BEFORE - 1]
        params = SamplingParams(seed=2, max_tokens=20, ignore_eos=True)
        await setup.router.submit(2, PROMPT[1:], params, before, block_source=SOURCE)
        await setup.router.finish(2)
        assert len(setup.worker.imports) == 1


async def test_steps_that_may_write_to_the_blocks_end_first() -> None:
    async with running() as setup:
        setup.worker.steps_allowed.clear()
        await setup.router.submit(1, [5, 6], LONG)
        await setup.router.until(lambda r: 1 in r.seeds)
        driver = setup.scheduler._driver
        while not driver.workers.num_in_flight:
            await asyncio.sleep(0)
        await setup.submit_moved(2)
        assert driver.cell is not None
        while not driver.cell.blocks.reserved:
            await asyncio.sleep(0.005)
        assert not setup.worker.imports
        setup.worker.steps_allowed.set()
        await setup.router.finish(1, 2)
        assert len(setup.worker.imports) == 1
        assert setup.router.tokens[1] == reference([5, 6], LONG)
        assert setup.router.tokens[2] == TOKENS[NUM_BEFORE:]


async def test_a_request_that_needs_the_blocks_taken_for_another_waits_for_them() -> None:
    async with running(num_gpu_blocks_override=20) as setup:
        setup.transport.allowed.clear()
        await setup.submit_moved()
        await setup.until_ordered()
        # More than is left; and nothing runs whose end could make room.
        prompt = list(range(50, 100))
        await setup.router.submit(2, prompt, PARAMS)
        await setup.router.until(lambda r: 2 in r.seeds)
        assert setup.worker.num_steps == 0
        setup.transport.allowed.set()
        await setup.router.finish(1, 2)
        assert setup.router.tokens[1] == TOKENS[NUM_BEFORE:]
        assert setup.router.tokens[2] == reference(prompt, PARAMS)
        await setup.assert_all_is_free()


async def test_a_request_that_is_cancelled_meanwhile_is_not_queued() -> None:
    async with running() as setup:
        setup.transport.allowed.clear()
        await setup.submit_moved()
        await setup.until_ordered()
        await setup.router.cancel(1)
        # The session is in order: what follows has been read after it.
        await setup.router.submit(2, [5, 6], PARAMS)
        await setup.router.finish(2)
        setup.transport.allowed.set()
        await setup.assert_all_is_free()
        assert 1 not in setup.router.seeds


async def test_a_request_whose_session_ends_meanwhile_is_not_queued() -> None:
    async with running() as setup:
        setup.transport.allowed.clear()
        await setup.submit_moved()
        await setup.until_ordered()
        setup.router.call.cancel()
        await setup.router.until(lambda r: r.ended)
        while setup.scheduler._driver.num_sessions:
            await asyncio.sleep(0.005)
        setup.transport.allowed.set()
        await setup.assert_all_is_free()
        assert setup.worker.num_steps == 0


async def test_a_request_goes_on_when_the_workers_are_lost_meanwhile() -> None:
    async with running() as setup:
        setup.transport.allowed.clear()
        await setup.submit_moved()
        await setup.until_ordered()
        setup.worker.loses_next_step = True
        await setup.router.submit(2, [5, 6], PARAMS)
        await setup.router.finish(1, 2)
        assert setup.router.tokens[1] == TOKENS[NUM_BEFORE:]
        assert setup.router.tokens[2] == reference([5, 6], PARAMS)
        await setup.assert_all_is_free()


async def test_a_cell_that_moves_reports_its_workers_first() -> None:
    async with running() as setup, open_channel(setup.address) as channel:
        setup.worker.steps_allowed.clear()
        await setup.router.submit(1, PROMPT, PARAMS)
        await setup.router.until(lambda r: 1 in r.seeds)
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        call = aiter(stub.Drain(scheduler_pb2.DrainRequest(move=True), timeout=20))
        await anext(call)
        await setup.router.until(lambda r: bool(r.states) and r.states[-1].moving)
        assert setup.router.block_source == [setup.worker.address]
        setup.worker.steps_allowed.set()
        await setup.router.finish(1)
        assert [each.num_unfinished async for each in call][-1] == 0
