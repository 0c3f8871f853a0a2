"""The pods of overlay cpu with components model and pull: a Job fills the claim, others read it."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.served_model import save_served_model
from tests.fakes.hub import COMMIT, NAME, serve_hub
from tests.manifests.conftest import Deployment, deployed
from tests.manifests.tiny_model import OPTIONS, tokens_of, tokens_of_processes

CONTAINER_USER = 10001


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the hub has."""
    directory = tmp_path_factory.mktemp("hub")
    save_served_model(directory, "llama")
    return directory


@pytest.fixture(scope="module")
def claim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty volume; a kubelet gives it to the group of the pod, by its fsGroup."""
    claim = tmp_path_factory.mktemp("model") / "claims" / "quire-model"
    claim.mkdir(parents=True)
    os.chown(claim, 0, CONTAINER_USER)
    claim.chmod(0o2775)
    return claim


@pytest.fixture(scope="module")
def cluster(model: Path, claim: Path) -> Iterator[Deployment]:
    with serve_hub() as hub:
        hub.files = {file.name: file.read_bytes() for file in model.iterdir()}
        hub.large = {file.name for file in model.glob("*.safetensors")}
        pull = {"MODEL": NAME, "HF_ENDPOINT": hub.address}
        components = ("model", "pull")
        directory = claim.parents[1]
        with deployed(directory, "cpu", *components, options=OPTIONS, pull=pull) as deployment:
            yield deployment


def test_the_job_brings_what_the_hub_has_and_only_checks_it_later(
    cluster: Deployment, model: Path, claim: Path
) -> None:
    contents = {file.name: file.read_bytes() for file in model.iterdir()}
    assert {file.name: file.read_bytes() for file in claim.iterdir()} == contents
    times = {file.name: file.stat().st_mtime_ns for file in claim.iterdir()}
    (job,) = (pod for pod in cluster.kubelet.manifests.pods if pod.ends)
    assert cluster.kubelet.run_job(job) == f"{NAME}@{COMMIT}"
    assert {file.name: file.stat().st_mtime_ns for file in claim.iterdir()} == times


def test_every_pod_has_the_files_of_the_claim_to_read(cluster: Deployment, claim: Path) -> None:
    files = sorted(path.name for path in claim.iterdir())
    assert len(cluster.kubelet.pods) == 4
    for pod in cluster.kubelet.pods.values():
        assert sorted(pod.execute("ls", "/model").split()) == files
        with pytest.raises(AssertionError, match="Read-only file system"):
            pod.execute("touch", "/model/here")


async def test_tokens_are_those_of_plain_processes(cluster: Deployment, model: Path) -> None:
    expected = await tokens_of_processes(model)
    async with cluster.client() as client:
        assert await asyncio.wait_for(tokens_of(client), 120) == expected
