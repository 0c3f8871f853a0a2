"""The pods of an overlay, running."""

import asyncio
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from quire import AsyncClient
from tests.compose.load import Tokens, all_tokens
from tests.e2e.conftest import running_cluster
from tests.manifests.kubelet import Kubelet, why_not
from tests.manifests.secrets_of import make_certificates, make_key
from tools.manifests.render import ROOT, Release, render

IMAGE_TAG = os.environ.get("IMAGE_TAG") or "dev"
RUNNING: list[Kubelet] = []


@dataclass
class Deployment:
    """What a test talks to.

    Attributes:
        kubelet: that runs the pods.
        tls_dir: of a client, None in the clear.
        api_key: of a client, "" for none.
    """

    kubelet: Kubelet
    tls_dir: Path | None = None
    api_key: str = ""

    def client(self) -> AsyncClient:
        """Return a client of the router that there is now."""
        (router,) = self.kubelet.of("router")
        address = f"{router.address}:{router.template.ports['grpc']}"
        return AsyncClient(address, tls_dir=self.tls_dir, api_key=self.api_key or None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.manifests)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, "pytest.CallInfo[None]", None]:
    """Show the logs of the pods with a failure."""
    report = (yield).get_result()
    if report.failed:
        for kubelet in RUNNING:
            report.sections.append(("pods", kubelet.logs()))


@contextmanager
def deployed(
    directory: Path,
    overlay: str,
    *components: str,
    tag: str = IMAGE_TAG,
    options: Mapping[str, str] | None = None,
    pull: Mapping[str, str] | None = None,
) -> Iterator[Deployment]:
    """Run the pods of an overlay with these components until the end of the block.

    Args:
        directory: for certificates and keys; has `claims/NAME` of each claim that the pods mount.
        overlay: its name.
        components: their names.
        tag: of the images.
        options: variables of all services, beside those of their ConfigMap.
        pull: variables of the Job that brings the model, likewise.
    """
    release = Release(overlay, tag, components=components)
    manifests = render(release, ROOT / "build" / "test_manifests" / "pods")
    for name, more in (("quire-options", options), ("quire-pull", pull)):
        for each in manifests.of_kind("ConfigMap"):
            if each["metadata"]["name"].startswith(name):
                each["data"] |= more or {}
    if (reason := why_not(manifests)) is not None:
        pytest.skip(reason)
    kubelet = Kubelet(manifests, f"quire-{overlay}-{os.getpid()}-{len(components)}", directory)
    deployment = Deployment(kubelet)
    if "mtls" in components:
        make_certificates(manifests, directory)
        deployment.tls_dir = directory / "certs" / "client"
    if "api-keys" in components:
        deployment.api_key = make_key(directory)
    RUNNING.append(kubelet)
    try:
        kubelet.start()
        try:
            kubelet.wait_ready()
        except BaseException:
            print(kubelet.logs())
            raise
        yield deployment
    finally:
        RUNNING.remove(kubelet)
        kubelet.stop()


@pytest.fixture(scope="session")
def expected() -> list[Tokens]:
    """The tokens of a cluster of plain processes, with as many workers."""

    async def run() -> list[Tokens]:
        async with (
            running_cluster(tensor_parallel_size=2) as cluster,
            AsyncClient(cluster.router.address) as client,
        ):
            return await all_tokens(client)

    return asyncio.run(run())
