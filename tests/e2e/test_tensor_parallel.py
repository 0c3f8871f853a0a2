"""Two workers share each layer and give the tokens of one."""

import asyncio
import os
import signal

import pytest

from quire import AsyncClient, SamplingParams
from quire.contract.outputs import Delta
from tests.e2e.admin_ports import scrape
from tests.e2e.conftest import SharedClusters, StartCluster

PROMPTS = ("The list class", "Return a copy of the string", "A function definition")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_two_ranks_give_the_tokens_of_one(
    temperature: float, shared_clusters: SharedClusters
) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=32, ignore_eos=True)
    answers = []
    for size in (1, 2):
        cluster = shared_clusters.get(dtype="float32", tensor_parallel_size=size)
        async with AsyncClient(cluster.router.address) as client:
            answers.append([(await client.generate(p, params)).token_ids for p in PROMPTS])
    assert answers[0] == answers[1]


# tests/models has 1, 2 and 4 ranks of all families, in one process.
@pytest.mark.parametrize("sizes", [(1, 2), pytest.param((1, 4), marks=pytest.mark.deep)])
async def test_with_invariance_1_2_and_4_ranks_give_the_same_bits(
    sizes: tuple[int, int], start_cluster: StartCluster
) -> None:
    """bf16, sampled, with log-probabilities: any other sum would show."""
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=64, ignore_eos=True, logprobs=2)
    answers = []
    for size in sizes:
        async with (
            start_cluster(invariant=True, tensor_parallel_size=size) as cluster,
            AsyncClient(cluster.router.address) as client,
        ):
            outputs = await asyncio.gather(*(client.generate(p, params) for p in PROMPTS))
            answers.append([(output.token_ids, output.logprobs) for output in outputs])
    assert answers[0] == answers[1]


# tests/e2e/test_static_launcher.py kills rank 1, too.
@pytest.mark.parametrize(
    "victim", ["worker 0", pytest.param("worker 1", marks=pytest.mark.deep), "scheduler"]
)
async def test_killing_any_of_them_changes_no_token(
    victim: str, shared_clusters: SharedClusters
) -> None:
    """The rank that is left meets the one that comes back."""
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    cluster = shared_clusters.get(admin_port=0, tensor_parallel_size=2)
    async with AsyncClient(cluster.router.address) as client:
        expected = (await client.generate(PROMPTS[0], params)).token_ids
        service = next(service for service in cluster.services if service.name == victim)
        tokens: list[int] = []
        async with asyncio.timeout(40):
            async for event in client.stream(PROMPTS[0], params):
                if isinstance(event, Delta):
                    if not tokens:
                        os.kill(service.pid, signal.SIGKILL)
                    tokens += event.token_ids
        assert tuple(tokens) == expected
    if victim == "scheduler":
        counted = await scrape(cluster, "scheduler")
        assert counted("quire_scheduler_kv_blocks_adopted_total") > 0
