"""Kill a worker or the scheduler in mid-stream: the tokens are those of an undisturbed run."""

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from launch.cluster.config import embedded_model
from launch.cluster.keeper import Patience
from launch.cluster.supervisor import Cluster
from quire import AsyncClient, SamplingParams
from quire.contract.outputs import Completion, Delta
from quire.sdk.collect import Collector
from tests.e2e.admin_ports import scrape
from tests.e2e.conftest import SharedClusters, cluster_config

PARAMS = [
    SamplingParams(temperature=t, seed=seed, max_tokens=200, ignore_eos=True)
    for seed, t in enumerate((0.0, 0.7, 1.0, 1.3))
]
PARAMS.append(replace(PARAMS[2], repetition_penalty=1.2, frequency_penalty=0.3, logprobs=2))
PARAMS += [
    replace(PARAMS[2], n=3, stop=("class", "__init__")),
    SamplingParams(n=2, best_of=3, seed=9, max_tokens=200, ignore_eos=True),
    SamplingParams(
        n=2,
        best_of=3,
        use_beam_search=True,
        temperature=0.0,
        seed=0,
        max_tokens=120,
        ignore_eos=True,
    ),
]
PROMPTS = (
    "The list class",
    "Return a copy of the",
    "A function definition",
    "class Foo:",
    "The with statement",
    "Return True if",
    "The open function",
    "An iterator is",
)
# Best-of and beams send nothing before their end: there are no first tokens to wait for.
NUM_STREAMING = 6


async def collect(
    client: AsyncClient, index: int, some_arrived: asyncio.Event | None = None
) -> list[Completion]:
    """Return all outputs of a stream; set the event when its first tokens have arrived."""
    collector, num_tokens = Collector(), 0
    async for event in client.stream(PROMPTS[index], PARAMS[index]):
        collector.add(event)
        if isinstance(event, Delta):
            num_tokens += len(event.token_ids)
            if some_arrived and num_tokens > 20:
                some_arrived.set()
    if some_arrived:
        some_arrived.set()
    return [replace(each, request_id="") for each in collector.completions()]


async def collect_all(client: AsyncClient) -> list[list[Completion]]:
    """Return all outputs of every stream, of a run that nothing disturbs."""
    return await asyncio.gather(*(collect(client, index) for index in range(len(PROMPTS))))


@pytest.mark.parametrize(
    ("victim", "options"),
    [
        ("worker 0", {}),
        pytest.param("worker 0", {"speculation": "prompt-lookup"}, id="speculation"),
        pytest.param(
            "worker 0",
            {"speculation": "draft-model", "draft_model": str(embedded_model())},
            id="draft model",
        ),
        ("scheduler", {}),
        pytest.param("scheduler", {"speculation": "prompt-lookup"}, id="scheduler, speculation"),
        pytest.param(
            "scheduler", {"kv_cache_dtype": "int8"}, id="scheduler, int8", marks=pytest.mark.deep
        ),
        pytest.param("worker 0", {"kv_cache_dtype": "int8"}, marks=pytest.mark.deep),
    ],
)
async def test_killing_a_service_changes_no_token(
    shared_clusters: SharedClusters, victim: str, options: dict[str, str]
) -> None:
    cluster = shared_clusters.get(admin_port=0, **options)
    async with AsyncClient(cluster.router.address) as client:
        expected = await collect_all(client)
        assert [len(outputs) for outputs in expected] == [1] * 5 + [3, 2, 2]
        assert [len(outputs[0].token_ids) for outputs in expected[:5]] == [200] * 5
        assert len(expected[4][0].logprobs) == 200
        assert any(output.stop_str for output in expected[5]), "no stop string came up"

        arrived = [asyncio.Event() for _ in PROMPTS]
        streams = [asyncio.create_task(collect(client, i, arrived[i])) for i in range(len(PROMPTS))]
        await asyncio.gather(*(event.wait() for event in arrived[:NUM_STREAMING]))
        service = next(service for service in cluster.services if service.name == victim)
        killed = service.pid
        os.kill(killed, signal.SIGKILL)

        assert await asyncio.gather(*streams) == expected
        assert service.pid != killed
    if victim == "scheduler":
        counted = await scrape(cluster, "scheduler")
        assert counted("quire_scheduler_kv_blocks_adopted_total") > 0


def is_alive(pid: int) -> bool:
    """Return whether a process exists; one that has ended and is not reaped does too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_child_that_was_held_ready_takes_the_place_of_one_that_died() -> None:
    cluster = Cluster(cluster_config(), patience=Patience(steady_s=1e6))
    await cluster.start()
    try:
        async with AsyncClient(cluster.router.address) as client:
            expected = await collect(client, 1)
            service = next(each for each in cluster.services if each.name == "worker 0")
            seen = {each.pid for each in cluster.services}
            assert service.spare_pid is None
            await service.prepare()
            spare = service.spare_pid
            assert spare is not None
            os.kill(service.pid, signal.SIGKILL)
            assert await collect(client, 1) == expected
            assert service.pid == spare
            # One that has died is no use.
            await service.prepare()
            dead = service.spare_pid
            assert dead is not None
            os.kill(dead, signal.SIGKILL)
            os.kill(service.pid, signal.SIGKILL)
            assert await collect(client, 1) == expected
            assert service.pid not in (spare, dead)
            await service.prepare()
            seen |= {spare, dead, service.pid, service.spare_pid or 0}
    finally:
        await cluster.stop()
    assert 0 not in seen
    assert not any(is_alive(pid) for pid in seen)


async def test_a_worker_that_hangs_is_replaced_and_changes_no_token() -> None:
    cluster = Cluster(cluster_config(), patience=Patience(hang_timeout_s=3.0))
    await cluster.start()
    try:
        async with AsyncClient(cluster.router.address) as client:
            expected = await collect(client, 1)
            service = next(each for each in cluster.services if each.name == "worker 0")
            stopped = service.pid
            os.kill(stopped, signal.SIGSTOP)
            assert await collect(client, 1) == expected
            assert service.pid != stopped
    finally:
        await cluster.stop()
