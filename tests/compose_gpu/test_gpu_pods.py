"""The pods of overlay cpu with component gpu: each worker has a GPU of its own, emulated."""

import asyncio
from collections.abc import Iterator

import pytest

from quire import AsyncClient
from tests.compose_gpu.test_gpus import SCRAPE, tokens_of
from tests.e2e.conftest import running_cluster
from tests.manifests.conftest import Deployment, deployed
from tests.manifests.kubelet import Pod

OPTIONS = {
    "QUIRE_SCHEDULER_DTYPE": "float32",
    "QUIRE_SCHEDULER_INVARIANT": "1",
    "QUIRE_SCHEDULER_MAX_NUM_SEQS": "4",
    "QUIRE_SCHEDULER_MAX_MODEL_LEN": "64",
    "QUIRE_SCHEDULER_KV_CACHE_GIB": "0.01",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, image_tag: str) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("pods")
    with deployed(directory, "cpu", "gpu", tag=image_tag, options=OPTIONS) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    """The tokens of a cluster of plain processes on the CPU."""

    async def run() -> list[tuple[int, ...]]:
        async with (
            running_cluster(
                dtype="float32", invariant=True, device="cpu", tensor_parallel_size=2
            ) as cluster,
            AsyncClient(cluster.router.address) as client,
        ):
            return await tokens_of(client)

    return asyncio.run(run())


def gpu_of(pod: Pod) -> str:
    """Return the node in /dev of a worker that computes on a GPU."""
    page = pod.execute("python", "-c", SCRAPE)
    assert any('device="cuda:0"' in line for line in page.splitlines())
    return pod.execute("sh", "-c", "ls /dev | grep nvidia")


def test_each_worker_has_a_gpu_of_its_own(cluster: Deployment) -> None:
    assert [gpu_of(pod) for pod in cluster.kubelet.of("worker")] == ["nvidia0", "nvidia1"]


async def test_tokens_are_those_of_a_cpu_also_after_a_worker_was_deleted(
    cluster: Deployment, expected: list[tuple[int, ...]]
) -> None:
    async with cluster.client() as client:
        assert await tokens_of(client) == expected
        pod = cluster.kubelet.of("worker")[0]
        running = asyncio.create_task(tokens_of(client))
        await asyncio.to_thread(cluster.kubelet.delete, pod.name)
        again = cluster.kubelet.make_again(pod.template, pod.ordinal)
        assert await asyncio.wait_for(running, 120) == expected
        await asyncio.to_thread(cluster.kubelet.wait_ready)
        assert gpu_of(again) == "nvidia0"
