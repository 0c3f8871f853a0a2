"""The pods of overlay gpu: workers have an emulated GPU each, all pods the model of the claim."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import AsyncClient
from tests.compose_gpu.test_gpus import SCRAPE
from tests.manifests.conftest import Deployment, deployed
from tests.manifests.kubelet import Pod
from tests.manifests.tiny_model import (
    OPTIONS,
    make_model_claim,
    tokens_of,
    tokens_of_processes,
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pods")


@pytest.fixture(scope="module")
def claim(directory: Path) -> Path:
    return make_model_claim(directory)


@pytest.fixture(scope="module")
def cluster(image_tag: str, directory: Path, claim: Path) -> Iterator[Deployment]:
    with deployed(directory, "gpu", tag=image_tag, options=OPTIONS) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def expected(cluster: Deployment, claim: Path) -> list[tuple[int, ...]]:
    """The tokens of a cluster of plain processes on the CPU."""
    return asyncio.run(tokens_of_processes(claim))


def gpu_of(pod: Pod) -> str:
    """Return the node in /dev of a worker that computes on a GPU."""
    page = pod.execute("python", "-c", SCRAPE)
    assert any('device="cuda:0"' in line for line in page.splitlines())
    return pod.execute("sh", "-c", "ls /dev | grep nvidia")


def test_each_worker_has_a_gpu_of_its_own(cluster: Deployment) -> None:
    assert [gpu_of(pod) for pod in cluster.kubelet.of("worker")] == ["nvidia0", "nvidia1"]


async def test_tokens_are_those_of_a_cpu_while_a_worker_is_deleted_and_made_again(
    cluster: Deployment, expected: list[tuple[int, ...]]
) -> None:
    """Requests follow one another, so that one is under way whenever the worker goes."""
    is_ready = asyncio.Event()

    async def requests(client: AsyncClient) -> list[list[tuple[int, ...]]]:
        found = []
        while not is_ready.is_set():
            found.append(await tokens_of(client))
        return found

    async with cluster.client() as client:
        assert await tokens_of(client) == expected
        pod = cluster.kubelet.of("worker")[0]
        running = asyncio.create_task(requests(client))
        await asyncio.to_thread(cluster.kubelet.delete, pod.name)
        again = cluster.kubelet.make_again(pod.template, pod.ordinal)
        await asyncio.to_thread(cluster.kubelet.wait_ready)
        is_ready.set()
        found = await asyncio.wait_for(running, 120)
    assert found
    assert all(tokens == expected for tokens in found)
    assert gpu_of(again) == "nvidia0"
