"""The pods of overlay cpu with component model: every one reads the model of the claim."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.manifests.conftest import Deployment, deployed
from tests.manifests.tiny_model import (
    OPTIONS,
    make_model_claim,
    tokens_of,
    tokens_of_processes,
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def claim(directory: Path) -> Path:
    return make_model_claim(directory)


@pytest.fixture(scope="module")
def cluster(directory: Path, claim: Path) -> Iterator[Deployment]:
    with deployed(directory, "cpu", "model", options=OPTIONS) as deployment:
        yield deployment


def test_every_pod_has_the_files_of_the_claim_to_read(cluster: Deployment, claim: Path) -> None:
    files = sorted(path.name for path in claim.iterdir())
    assert len(cluster.kubelet.pods) == 4
    for pod in cluster.kubelet.pods.values():
        assert sorted(pod.execute("ls", "/model").split()) == files
        with pytest.raises(AssertionError, match="Read-only file system"):
            pod.execute("touch", "/model/here")


async def test_tokens_are_those_of_plain_processes(cluster: Deployment, claim: Path) -> None:
    expected = await tokens_of_processes(claim)
    async with cluster.client() as client:
        assert await asyncio.wait_for(tokens_of(client), 120) == expected
