"""A scheduler that starts anew adopts what its workers' caches hold: over gRPC, fake workers."""

from collections.abc import AsyncIterator

import pytest

from quire.contract.sampling_params import SamplingParams
from scheduler_svc.server import SchedulerServer
from tests.fakes.fake_worker import FakeWorker
from tests.rpc.router_double import RouterDouble, open_session, running_scheduler
from tests.rpc.scheduler_requests import make_requests, reference

NUM_BLOCKS = 400
REQUESTS = make_requests(8, max_tokens=60)


@pytest.fixture
async def ranks() -> AsyncIterator[list[FakeWorker]]:
    """Two ranks that have run part of REQUESTS for a scheduler that is gone."""
    async with FakeWorker(num_blocks=NUM_BLOCKS) as first, FakeWorker(num_blocks=NUM_BLOCKS) as two:
        ranks = [first, two]
        async with (
            running_scheduler(first.address, two.address) as (_, at),
            open_session(at) as router,
        ):
            for number, (prompt, params) in REQUESTS.items():
                await router.submit(number, prompt, ignoring_ends(params))
            await router.until(
                lambda each: all(len(each.tokens.get(number, ())) > 20 for number in REQUESTS)
            )
        yield ranks


def ignoring_ends(params: SamplingParams) -> SamplingParams:
    return SamplingParams(
        temperature=params.temperature,
        seed=params.seed,
        max_tokens=params.max_tokens,
        ignore_eos=True,
    )


async def run_on(router: RouterDouble) -> None:
    """Resubmit each request with its first tokens and check the others."""
    for number, (prompt, params) in REQUESTS.items():
        expected = reference(prompt, ignoring_ends(params))
        await router.submit(number, prompt, ignoring_ends(params), expected[:20])
    await router.finish(*REQUESTS)
    for number, (prompt, params) in REQUESTS.items():
        assert router.tokens[number] == reference(prompt, ignoring_ends(params))[20:]


def adopted(scheduler: SchedulerServer) -> tuple[int, int]:
    """Blocks adopted, and blocks offered."""
    cell = scheduler._driver.cell
    assert cell is not None
    cell.scheduler.check_invariants()
    return cell.counters.num_blocks_adopted, cell.counters.num_blocks_offered


async def test_requests_go_on_with_their_last_block(ranks: list[FakeWorker]) -> None:
    fakes = [rank.fake for rank in ranks]
    async with (
        running_scheduler(*(rank.address for rank in ranks)) as (scheduler, at),
        open_session(at) as router,
    ):
        num_adopted, num_offered = adopted(scheduler)
        assert num_adopted == num_offered > len(REQUESTS) * 20 // 4
        assert router.block_hashes, "routers are sent what can be found"
        await run_on(router)
        cell = scheduler._driver.cell
        assert cell is not None
        prefixes = cell.scheduler.prefix_cache
        num_missing = prefixes.num_tokens_looked_up - prefixes.num_tokens_found
        assert num_missing <= 4 * len(REQUESTS), "at most the last block of each is computed"
    assert [rank.fake for rank in ranks] == fakes, "the caches are those of before"


@pytest.mark.parametrize(
    ("settings", "is_adopted"),
    [
        ({"num_gpu_blocks_override": NUM_BLOCKS}, True),
        ({"num_gpu_blocks_override": NUM_BLOCKS - 1}, False),
        ({"block_size": 8}, False),
        ({"max_num_seqs": 7}, False),
        ({"enable_prefix_caching": False}, False),
    ],
    ids=str,
)
async def test_a_cache_of_other_settings_is_made_anew(
    ranks: list[FakeWorker], settings: dict[str, object], is_adopted: bool
) -> None:
    async with (
        running_scheduler(*(rank.address for rank in ranks), **settings) as (scheduler, at),
        open_session(at) as router,
    ):
        num_adopted, num_offered = adopted(scheduler)
        assert (num_adopted > 0, num_offered > 0) == (is_adopted, True)
        await run_on(router)


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_rank_that_was_replaced_has_nothing_for_the_group(
    ranks: list[FakeWorker], rank: int
) -> None:
    await ranks[rank].kill()
    async with (
        FakeWorker(num_blocks=NUM_BLOCKS) as ranks[rank],
        running_scheduler(*(each.address for each in ranks)) as (scheduler, at),
        open_session(at) as router,
    ):
        num_adopted, num_offered = adopted(scheduler)
        assert (num_adopted, num_offered > 0) == (0, True)
        await run_on(router)


async def test_a_scheduler_that_forms_its_workers_again_adopts_too() -> None:
    """A broken connection alone costs no block."""
    async with (
        FakeWorker(num_blocks=NUM_BLOCKS) as worker,
        running_scheduler(worker.address) as (scheduler, at),
        open_session(at) as router,
    ):
        for number, (prompt, params) in REQUESTS.items():
            await router.submit(number, prompt, ignoring_ends(params))
        await worker.wait_steps(30)
        worker.loses_next_step = True
        await router.finish(*REQUESTS)
        for number, (prompt, params) in REQUESTS.items():
            assert router.tokens[number] == reference(prompt, ignoring_ends(params))
        num_adopted, num_offered = adopted(scheduler)
        assert num_adopted == num_offered > 0
