"""Bad bodies, heads, paths and frames at a router that serves others meanwhile."""

import asyncio

import pytest

from launch.cluster.supervisor import Cluster
from quire import AsyncClient, SamplingParams
from tests import depth
from tests.chaos.http_attack import HttpAttack
from tests.e2e.conftest import SharedClusters

NUM_REQUESTS = depth.budget("bad requests over HTTP", test=400, deep=6_000)
PARAMS = SamplingParams(seed=3, max_tokens=200, ignore_eos=True)


@pytest.fixture
def cluster(shared_clusters: SharedClusters) -> Cluster:
    return shared_clusters.get(port=0)


@pytest.mark.budget
async def test_each_is_refused_in_its_shape_and_nobody_else_notices(cluster: Cluster) -> None:
    """A short `make chaos SCENARIO=http-hostile`."""
    pids = [service.pid for service in cluster.services]
    attack = HttpAttack(cluster.router.http_address)
    async with AsyncClient(cluster.router.address) as client:
        alone = await client.generate("The list class", PARAMS)
        attacking = asyncio.create_task(attack.run(seed=11, number=NUM_REQUESTS))
        while not attacking.done():
            beside = await client.generate("The list class", PARAMS)
            assert beside.token_ids == alone.token_ids
        await attacking
    assert not attack.wrong, "\n".join(attack.lines())
    assert sum(attack.counts.values()) >= NUM_REQUESTS
    assert [service.pid for service in cluster.services] == pids
