"""Kill a worker or the scheduler in mid-stream: the tokens are those of an undisturbed run."""

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from launch.cluster.config import embedded_model
from quire import AsyncClient, SamplingParams
from quire.contract.outputs import Completion, Delta
from quire.sdk.collect import Collector
from tests.e2e.conftest import SharedClusters

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
        pytest.param("worker 0", {"kv_cache_dtype": "int8"}, marks=pytest.mark.deep),
    ],
)
async def test_killing_a_service_changes_no_token(
    shared_clusters: SharedClusters, victim: str, options: dict[str, str]
) -> None:
    cluster = shared_clusters.get(**options)
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
