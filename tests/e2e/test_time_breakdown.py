"""Where the time of a request went: to the millisecond, whatever happened on the way."""

import asyncio
import os
import signal
import time

from typer.testing import CliRunner

from launch.cli.main import app
from quire import AsyncClient, SamplingParams
from quire.contract.outputs import Delta, Finished
from quire.contract.time_breakdown import TimeBreakdown
from tests.e2e.conftest import SharedClusters, StartCluster

ONE = SamplingParams(seed=1, max_tokens=60, ignore_eos=True)
KINDS = (
    ONE,
    SamplingParams(n=3, seed=2, max_tokens=40, ignore_eos=True),
    SamplingParams(n=2, best_of=3, seed=3, max_tokens=40, ignore_eos=True),
    SamplingParams(
        n=2, best_of=3, use_beam_search=True, temperature=0.0, max_tokens=40, ignore_eos=True
    ),
    # Ends by its text, in the router.
    SamplingParams(seed=5, max_tokens=200, ignore_eos=True, stop=("e",)),
)


async def account_of(
    client: AsyncClient,
    params: SamplingParams,
    prompt: str = "The list class",
    begun: asyncio.Event | None = None,
) -> tuple[TimeBreakdown, int]:
    """Where the time of a request went, and the microseconds that passed here."""
    breakdowns, num_finished = [], 0
    started_ns = time.perf_counter_ns()
    async for event in client.stream(prompt, params, include_time_breakdown=True):
        if begun is not None and isinstance(event, Delta):
            begun.set()
        if isinstance(event, Finished):
            num_finished += 1
            breakdowns.append(event.time_breakdown)
    elapsed_us = (time.perf_counter_ns() - started_ns) // 1000
    assert num_finished == params.n
    assert breakdowns[:-1] == [None] * (params.n - 1), "it comes with the last output"
    assert breakdowns[-1] is not None
    return breakdowns[-1], elapsed_us


def check(breakdown: TimeBreakdown, elapsed_us: int) -> None:
    assert abs(sum(breakdown.parts.values()) - breakdown.total_us) < 1000
    assert all(us >= 0 for us in breakdown.parts.values())
    # The client's clock began before and ended after: it is the two hops between them longer.
    assert breakdown.total_us <= elapsed_us


async def test_parts_add_up_to_the_wall_time_under_load_and_preemption(
    start_cluster: StartCluster,
) -> None:
    async with (
        start_cluster(num_gpu_blocks_override=30, max_num_seqs=24) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        alone, elapsed_us = await account_of(client, ONE)
        check(alone, elapsed_us)
        assert alone.decode_us > alone.total_us / 2, "59 of 60 tokens are decoded"
        # A router that a busy machine stops as it looks for a cell waits for one, by its clock.
        assert alone.wire_us + alone.delivery_us + alone.not_ready_us < alone.total_us / 4
        assert not alone.preempted_us + alone.recovering_us

        streams = [account_of(client, params) for params in KINDS * 4]
        found = await asyncio.gather(*streams)
        for breakdown, elapsed_us in found:
            check(breakdown, elapsed_us)
            assert not breakdown.unreported_us
        waited_us = sum(a.queue_blocks_us + a.queue_seqs_us for a, _ in found)
        assert waited_us > 0, "forty sequences for thirty blocks"
        state = (await anext(client.watch_cluster()))[0].state
        assert state.preemptions_total > 0
        assert sum(a.preempted_us for a, _ in found) > 0


async def test_parts_add_up_when_the_scheduler_is_killed(shared_clusters: SharedClusters) -> None:
    cluster = shared_clusters.get()
    async with AsyncClient(cluster.router.address) as client:
        long = SamplingParams(seed=7, max_tokens=400, ignore_eos=True)
        beams = SamplingParams(
            n=2, best_of=2, use_beam_search=True, temperature=0.0, max_tokens=200, ignore_eos=True
        )
        begun = asyncio.Event()
        streams = [
            asyncio.create_task(account_of(client, long, begun=begun)),
            asyncio.create_task(account_of(client, beams)),
        ]
        await begun.wait()
        scheduler = next(each for each in cluster.services if each.name == "scheduler")
        os.kill(scheduler.pid, signal.SIGKILL)
        for breakdown, elapsed_us in await asyncio.gather(*streams):
            check(breakdown, elapsed_us)
            assert breakdown.recovering_us > 0


async def test_the_command_shows_where_the_time_went(shared_clusters: SharedClusters) -> None:
    address = shared_clusters.get().router.address
    args = ["generate", "The list class", "--target", address]
    args += ["--max-tokens", "8", "--ignore-eos", "--time-breakdown"]
    result = await asyncio.to_thread(CliRunner().invoke, app, args)
    assert result.exit_code == 0, result.stderr
    lines = [line.split(" ms  ") for line in result.stderr.splitlines() if " ms  " in line]
    by_name = {name: float(ms) for ms, name in lines}
    assert by_name["prefill"] > 0
    assert by_name["decode"] > 0
    total_ms = by_name.pop("in all")
    assert abs(sum(by_name.values()) - total_ms) < 1
