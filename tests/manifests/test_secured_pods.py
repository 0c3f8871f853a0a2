"""The same pods with the components mtls and api-keys, of which overlay prod is made."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import AsyncClient
from quire.contract.errors import QuireError
from tests.compose.load import Tokens, all_tokens
from tests.manifests.conftest import Deployment, deployed
from tests.manifests.kubelet import docker


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("secured"), "cpu", "mtls", "api-keys") as deployment:
        yield deployment


async def test_a_client_with_certificate_and_key_is_answered(
    cluster: Deployment, expected: list[Tokens]
) -> None:
    async with cluster.client() as client:
        assert await all_tokens(client) == expected


def test_a_client_pod_is_answered_by_the_services_name(cluster: Deployment) -> None:
    answer = cluster.kubelet.run_client(
        *("generate", "The list class", "--target", "quire-router:50051", "--tls-dir", "/tls"),
        *("--temperature", "0", "--max-tokens", "8"),
        secret="quire-client-tls",
        environment=f"QUIRE_API_KEY={cluster.api_key}",
    )
    assert answer.strip()


@pytest.mark.parametrize(
    ("certificate", "key", "code"),
    [(False, True, "UNAVAILABLE"), (True, False, "UNAUTHENTICATED")],
)
async def test_a_client_without_either_is_refused(
    cluster: Deployment, tmp_path: Path, certificate: bool, key: bool, code: str
) -> None:
    (router,) = cluster.kubelet.of("router")
    assert cluster.tls_dir is not None
    for name in ("ca.crt", *(("tls.crt", "tls.key") if certificate else ())):
        (tmp_path / name).write_bytes((cluster.tls_dir / name).read_bytes())
    async with AsyncClient(
        f"{router.address}:50051", tls_dir=tmp_path, api_key=cluster.api_key if key else None
    ) as client:
        with pytest.raises(QuireError) as raised:
            await client.generate("The list class")
        assert raised.value.code == code


def test_a_scheduler_is_not_drained_by_a_client(cluster: Deployment) -> None:
    """It has a certificate of the authority, and another role than an operator's."""
    image = cluster.kubelet.of("router")[0].template.main["image"]
    with pytest.raises(AssertionError, match=r"PERMISSION_DENIED|role"):
        docker(
            *("run", "--rm", "--network", cluster.kubelet.network, "--entrypoint", "quire"),
            *("--volume", f"{cluster.tls_dir}:/tls:ro", "--user", "0"),
            *(image, "drain", "quire-scheduler-a:50052"),
            *("--tls-dir", "/tls"),
        )


async def test_all_end_in_order_within_their_grace(cluster: Deployment) -> None:
    for name in list(cluster.kubelet.pods):
        assert cluster.kubelet.delete(name) == 0
