"""The pods of overlay cpu: they start, answer, are closed, and come back when they are deleted."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.compose.load import Tokens, all_tokens, collect, until_answering
from tests.manifests.conftest import Deployment, deployed
from tests.manifests.kubelet import Pod

# Where the workers of a cell may listen besides; set by the pods' sysctl.
RANKS = range(54000, 61000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("pods"), "cpu") as deployment:
        yield deployment


def listening(pod: Pod) -> set[int]:
    """Ports on which a pod listens, but for those of its loopback."""
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pod.execute("cat", table).splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            host, _, port = local.partition(":")
            # 0A is LISTEN; the loopback, and the engine's own name server in it, end in 7F.
            if state == "0A" and not host.endswith("7F"):
                ports.add(int(port, 16))
    return ports


def test_a_client_pod_is_answered_through_the_service(cluster: Deployment) -> None:
    answer = cluster.kubelet.run_client(
        *("generate", "The list class", "--target", "quire-router:50051"),
        *("--temperature", "0", "--max-tokens", "8"),
    )
    assert answer.strip()


async def test_answers_are_those_of_plain_processes(
    cluster: Deployment, expected: list[Tokens]
) -> None:
    async with cluster.client() as client:
        assert await all_tokens(client) == expected


def test_processes_have_no_more_rights_than_declared(cluster: Deployment) -> None:
    for pod in cluster.kubelet.pods.values():
        status = dict(
            line.split(":\t", 1) for line in pod.execute("cat", "/proc/1/status").splitlines()
        )
        assert status["Uid"].split() == ["10001"] * 4
        assert status["Gid"].split() == ["10001"] * 4
        assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd")} == {0}
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        with pytest.raises(AssertionError, match="Read-only file system"):
            pod.execute("touch", "/opt/here")


def test_pods_listen_on_declared_ports_only(cluster: Deployment) -> None:
    for pod in cluster.kubelet.pods.values():
        declared = set(pod.template.ports.values())
        found = listening(pod)
        assert declared <= found
        undeclared = found - declared
        if pod.template.command == "worker":
            # The ranks', at which they have met.
            assert all(port in RANKS for port in undeclared)
        else:
            assert not undeclared


@pytest.mark.parametrize("command", ["worker", "scheduler"])
async def test_a_deleted_pod_comes_back_and_no_token_changes(
    cluster: Deployment, expected: list[Tokens], command: str
) -> None:
    pod = cluster.kubelet.of(command)[-1]
    async with cluster.client() as client:
        begun = asyncio.Event()
        running = asyncio.create_task(collect(client, 1, begun))
        await begun.wait()
        if command == "scheduler":
            # It drains: what runs ends before it does.
            status = await asyncio.to_thread(cluster.kubelet.delete, pod.name)
            assert status == 0
            assert await running == expected[1]
        else:
            await asyncio.to_thread(cluster.kubelet.delete, pod.name)
        cluster.kubelet.make_again(pod.template, pod.ordinal)
        assert await asyncio.wait_for(running, 90) == expected[1]
        await asyncio.to_thread(cluster.kubelet.wait_ready)
        await until_answering(client, expected[0])


async def test_a_deleted_router_finishes_its_streams_while_the_next_one_serves(
    cluster: Deployment, expected: list[Tokens]
) -> None:
    (router,) = cluster.kubelet.of("router")
    async with cluster.client() as client:
        begun = asyncio.Event()
        running = asyncio.create_task(collect(client, 1, begun))
        await begun.wait()
        status = await asyncio.to_thread(cluster.kubelet.delete, router.name)
        assert await running == expected[1]
        assert status == 0
    cluster.kubelet.make_again(router.template, router.ordinal)
    await asyncio.to_thread(cluster.kubelet.wait_ready)
    async with cluster.client() as client:
        assert await collect(client, 0) == expected[0]
