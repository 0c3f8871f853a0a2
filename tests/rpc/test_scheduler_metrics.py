"""What a scheduler reports of its cell, over real gRPC with fake workers."""

import asyncio

import pytest

from quire.contract.sampling_params import SamplingParams
from scheduler_svc import driver
from scheduler_svc.server import SchedulerServer
from tests import scraping
from tests.fakes.fake_worker import FakeWorker
from tests.rpc.router_double import open_session, running_scheduler
from tests.rpc.scheduler_requests import LONG, make_requests
from tests.scraping import Scrape


async def get(address: str, path: str) -> tuple[int, str]:
    return await asyncio.to_thread(scraping.get, address, path)


async def admin_of(scheduler: SchedulerServer) -> str:
    return await scheduler.start_admin(0)


async def metrics(address: str) -> Scrape:
    status, text = await get(address, "/metrics")
    assert status == 200
    return Scrape(text)


@pytest.mark.parametrize("mode", ["swap", "recompute"])
async def test_preemptions_are_counted_by_what_became_of_the_blocks(mode: str) -> None:
    requests = make_requests(32)
    async with (
        FakeWorker(num_blocks=24, num_host_blocks=96) as worker,
        running_scheduler(
            worker.address, max_num_seqs=8, max_num_batched_tokens=32, preemption_mode=mode
        ) as (scheduler, address),
        open_session(address) as router,
    ):
        admin = await admin_of(scheduler)
        for number, request in requests.items():
            await router.submit(number, *request)
        await router.finish(*requests)
        await router.until(lambda each: bool(each.states) and each.states[-1].num_running == 0)
        page = await metrics(admin)
        state = router.states[-1]

    other = {"swap": "recompute", "recompute": "swap"}[mode]
    assert page("quire_scheduler_preemptions_total", mode=mode) == state.preemptions_total > 0
    assert page("quire_scheduler_preemptions_total", mode=other) == 0
    moved = page("quire_scheduler_swapped_blocks_total", direction="out")
    assert (moved > 0) == (mode == "swap")
    assert page("quire_scheduler_swapped_blocks_total", direction="in") == moved
    assert (page("quire_scheduler_recomputed_tokens_total") > 0) == (mode == "recompute")
    num_tokens = sum(map(len, router.tokens.values()))
    assert page("quire_scheduler_sampled_tokens_total") == num_tokens
    ends = [
        page("quire_scheduler_sequences_ended_total", reason=reason)
        for reason in ("stop", "length", "error")
    ]
    assert sum(ends) == page("quire_scheduler_requests_admitted_total") == len(requests)
    for name in ("queue", "prefill", "decode"):
        assert page(f"quire_scheduler_{name}_seconds_count") == len(requests)
    phases = "quire_scheduler_request_phase_seconds_total"
    for phase in ("decode", "prefill"):
        seconds = page(f"quire_scheduler_{phase}_seconds_sum")
        assert page(phases, phase=phase) == pytest.approx(seconds)
        assert seconds > 0
    queued = [page(phases, phase=f"queue_{each}") for each in ("step", "blocks", "seqs", "tokens")]
    assert sum(queued) == pytest.approx(page("quire_scheduler_queue_seconds_sum"))
    assert page(phases, phase="preempted") > 0
    assert page("quire_scheduler_step_tokens_count") == worker.num_steps
    blocks = [
        page("quire_scheduler_kv_blocks", memory="device", state=state)
        for state in ("used", "cached", "free")
    ]
    assert sum(blocks) == 24
    assert blocks[0] == 0
    assert page("quire_scheduler_kv_blocks", memory="host", state="free") == 96
    assert page("quire_scheduler_phase_seconds_total", phase="model") == pytest.approx(
        20e-6 * worker.num_steps
    )


async def test_before_the_workers_have_met_only_they_are_reported() -> None:
    async with running_scheduler("127.0.0.1:1", "127.0.0.1:2", wait=False) as (scheduler, _):
        admin = await admin_of(scheduler)
        page = await metrics(admin)
        assert page("quire_scheduler_worker_up", rank="0") == 0
        assert page("quire_scheduler_worker_up", rank="1") == 0
        assert page("quire_scheduler_group_formations_total") == 0
        assert "quire_scheduler_requests" not in page.text
        assert (await get(admin, "/metrics/vllm"))[0] == 200
        assert (await get(admin, "/readyz"))[0] == 503
        assert (await get(admin, "/livez"))[0] == 200


async def test_a_rank_that_is_killed_is_down_and_the_other_is_not() -> None:
    async with (
        FakeWorker() as first,
        FakeWorker() as second,
        running_scheduler(first.address, second.address) as (scheduler, _),
    ):
        admin = await admin_of(scheduler)
        page = await metrics(admin)
        assert [page("quire_scheduler_worker_up", rank=rank) for rank in "01"] == [1, 1]
        await second.kill()
        async with asyncio.timeout(20):
            while page("quire_scheduler_worker_up", rank="1"):
                await asyncio.sleep(0.01)
                page = await metrics(admin)
            # While it is looked for, the first answers.
            while not page("quire_scheduler_worker_up", rank="0"):
                await asyncio.sleep(0.01)
                page = await metrics(admin)
        assert page("quire_scheduler_worker_up", rank="1") == 0
        assert page("quire_ready") == 0


async def test_a_step_that_does_not_end_makes_the_scheduler_look_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (scheduler, address),
        open_session(address) as router,
    ):
        admin = await admin_of(scheduler)
        worker.steps_allowed.clear()
        await router.submit(1, [1, 2, 3], LONG)
        await router.until(lambda each: 1 in each.seeds)
        assert await get(admin, "/livez") == (200, "ok\n")
        monkeypatch.setattr(driver, "STUCK_AFTER_S", 0.05)
        async with asyncio.timeout(20):
            while (answer := await get(admin, "/livez"))[0] == 200:
                await asyncio.sleep(0.01)
        assert answer == (503, "no step for 0 s\n")
        # The step is waited for even when nobody wants what it computes.
        await router.cancel(1)
        async with asyncio.timeout(20):
            while (await metrics(admin))("quire_scheduler_requests", state="running"):
                await asyncio.sleep(0.01)
        assert (await get(admin, "/livez"))[0] == 503
        # Idle, it is alive however long nothing has come.
        worker.steps_allowed.set()
        async with asyncio.timeout(20):
            while (await get(admin, "/livez"))[0] != 200:
                await asyncio.sleep(0.01)
        assert (await metrics(admin))("quire_scheduler_steps_total") >= 1


@pytest.mark.parametrize("steps", [1, 2])
async def test_steps_whose_results_are_awaited_are_in_flight(steps: int) -> None:
    in_flight = "quire_scheduler_steps_in_flight"
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address, max_steps_in_flight=steps) as (scheduler, address),
        open_session(address) as router,
        asyncio.timeout(20),
    ):
        admin = await admin_of(scheduler)
        worker.steps_allowed.clear()
        await router.submit(1, [1, 2, 3], LONG)
        while (page := await metrics(admin))(in_flight) < steps:
            await asyncio.sleep(0.01)
        assert page("quire_scheduler_steps_total") == 0
        worker.steps_allowed.set()
        await router.finish(1)
        while (page := await metrics(admin))(in_flight):
            await asyncio.sleep(0.01)
        assert page("quire_scheduler_steps_total") == worker.num_steps


async def test_refusals_are_counted_by_their_reason() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address, max_waiting=1, max_num_seqs=1) as (scheduler, address),
        open_session(address) as router,
    ):
        admin = await admin_of(scheduler)
        worker.steps_allowed.clear()
        await router.submit(1, [2**30], SamplingParams(seed=1))
        for number in (2, 3, 4):
            await router.submit(number, [1, 2, 3], LONG)
            await router.until(lambda each, n=number: n in each.seeds or n in each.refused)
        page = await metrics(admin)
        refused = "quire_scheduler_requests_refused_total"
        assert page(refused, reason="INVALID_REQUEST") == 1
        assert page(refused, reason="QUEUE_FULL") == len(router.refused) - 1 > 0
        assert page(refused, reason="DRAINING") == 0
        assert page("quire_scheduler_requests", state="running") == 1
        assert page("quire_scheduler_sessions") == 1
        worker.steps_allowed.set()
        await router.cancel(2, 3, 4)
