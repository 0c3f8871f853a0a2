"""Workers placed by Ray, on a cluster of two nodes on this machine, and on a Ray of our own."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from launch.cluster.supervisor import Cluster, ClusterConfig, LauncherName, embedded_model
from launch.launchers.ray_launcher import RayLauncher
from launch.launchers.ray_start import MAX_ATTEMPTS, is_too_slow
from quire import AsyncClient, SamplingParams
from quire.contract.errors import ConfigError, UnavailableError
from quire.contract.outputs import Delta
from tests.e2e.conftest import StartCluster

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'quire-serve[ray]'")

PROMPT = "The list class"
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=120, ignore_eos=True)


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """A Ray cluster of two nodes, each with room for one worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster = start_ray()
        try:
            yield cluster.address
        finally:
            cluster.shutdown()


def start_ray() -> Any:  # ray.cluster_utils.Cluster
    """Start both nodes, all over again where one took longer than Ray allows."""
    from ray.cluster_utils import Cluster as RayCluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    for attempts_left in reversed(range(MAX_ATTEMPTS)):
        cluster = RayCluster()
        try:
            cluster.add_node(**node)
            cluster.add_node(**node)
        except Exception as error:
            # Processes of the node that failed end with this one.
            cluster.shutdown()
            if not attempts_left or not is_too_slow(error):
                raise
        else:
            return cluster
    raise AssertionError("the last attempt returns or raises")


@asynccontextmanager
async def ray_cluster(address: str, **settings: object) -> AsyncIterator[tuple[Cluster, list[str]]]:
    """A cluster whose two workers are in Ray, and its messages while it started."""
    messages: list[str] = []
    config = ClusterConfig(
        model=embedded_model(),
        port=None,
        grpc_port=0,
        kv_cache_gib=0.03125,
        dtype="float32",
        launcher=LauncherName.RAY,
        ray_address=address,
        insecure=True,  # the nodes of this Ray have addresses of their own
        **{"tensor_parallel_size": 2, "device": "cpu", **settings},  # type: ignore[arg-type]
    )
    cluster = Cluster(config, messages.append)
    await cluster.start()
    try:
        yield cluster, messages
    finally:
        await cluster.stop()


async def test_two_nodes_hold_a_rank_each_and_a_killed_one_changes_no_token(
    ray_address: str, start_cluster: StartCluster
) -> None:
    async with (
        start_cluster(dtype="float32", tensor_parallel_size=2) as local,
        AsyncClient(local.router.address) as client,
    ):
        expected = (await client.generate(PROMPT, PARAMS)).token_ids

    async with ray_cluster(ray_address) as (cluster, messages):
        assert [service.name for service in cluster.services] == ["scheduler", "router"]
        assert "waiting for worker 0, worker 1" in messages
        assert messages[-2:] == ["waiting for the workers to load the model", "starting the router"]
        launcher = cluster.launcher
        assert isinstance(launcher, RayLauncher)
        before = list(launcher.statuses)
        assert len({status.node_id for status in before}) == 2, "one rank on each node"
        assert not any(status.address.startswith("0.0.0.0") for status in before)

        async with AsyncClient(cluster.router.address) as client:
            assert (await client.generate(PROMPT, PARAMS)).token_ids == expected
            for pid in (before[1].pid, before[0].pid, cluster.services[0].pid):
                tokens: list[int] = []
                async with asyncio.timeout(60):
                    async for event in client.stream(PROMPT, PARAMS):
                        if isinstance(event, Delta):
                            if not tokens:
                                os.kill(pid, signal.SIGKILL)
                            tokens += event.token_ids
                assert tuple(tokens) == expected
            restarted = [await launcher.ask(rank, 10) for rank in range(2)]
            assert not {each.pid for each in before} & {each.pid for each in restarted}
        pids = [status.pid for status in restarted]
    assert not ray.is_initialized()
    async with asyncio.timeout(20):
        while any(map(is_running, pids)):
            await asyncio.sleep(0.05)  # polling another process's end: nothing to wait on


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_workers_that_no_node_can_hold_are_refused_at_once(ray_address: str) -> None:
    for settings, parts in (
        ({"tensor_parallel_size": 3}, ["3 workers", '{"CPU": 1.0}', "2 nodes"]),
        ({"ray_cpus_per_worker": 2}, ["2 workers", '{"CPU": 2.0}', "2 nodes"]),
        ({"device": "cuda"}, ['"GPU": 1.0', "2 nodes"]),
    ):
        with pytest.raises(ConfigError) as caught:
            async with ray_cluster(ray_address, **settings):
                pass
        assert all(part in caught.value.message for part in parts), caught.value.message
        assert not ray.is_initialized()


async def test_a_cluster_in_use_is_waited_for_and_not_for_ever(
    ray_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.launchers.ray_placement.PACK_TIMEOUT_S", 1.5)

    @ray.remote(num_cpus=1)
    class Other:
        def is_there(self) -> bool:
            return True

    ray.init(ray_address, log_to_driver=False)
    try:
        other = Other.remote()
        assert ray.get(other.is_there.remote(), timeout=60)
        with pytest.raises(UnavailableError) as caught:
            async with ray_cluster(ray_address):
                pass
        parts = ("no room for 2 workers", "1.5 s", "2 nodes", 'of which {"CPU": 1.0} are free')
        assert all(part in caught.value.message for part in parts), caught.value.message
        assert ray.get(other.is_there.remote(), timeout=60), "a Ray of others is left as it was"
    finally:
        ray.shutdown()


def gcs_address(parent: int) -> str:
    """Where the Ray listens that the process started."""
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            after_name = (directory / "stat").read_text().rpartition(")")[2].split()
            command = (directory / "cmdline").read_text()
            found = re.search(r"--gcs-address=([0-9.:]+)", command)
            if int(after_name[1]) == parent and found:
                return found[1]
    raise AssertionError(f"process {parent} has no raylet")


def ask_without_a_token(address: str) -> grpc.StatusCode:
    """What the head node of a Ray cluster answers to a caller without a token."""
    with grpc.insecure_channel(address) as channel:
        ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")
        try:
            ask(b"", timeout=20)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


def test_a_ray_of_our_own_obeys_no_other_and_ends_with_us(ray_address: str) -> None:
    environment = {name: value for name, value in os.environ.items() if "RAY_" not in name}
    command = [
        "-m",
        "launch.cli.main",
        "serve",
        "--launcher",
        "ray",
        "--port",
        "0",
        "--grpc-port",
        "0",
    ]
    process = subprocess.Popen(
        [sys.executable, *command, "--kv-cache-gib", "0.03"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        shown = re.search(
            r"worker 0 +127[.]0[.]0[.]1:[0-9]+ [(]pid ([0-9]+) on Ray", "".join(lines)
        )
        assert shown, (lines, process.communicate(timeout=30))
        assert ask_without_a_token(gcs_address(process.pid)) is grpc.StatusCode.UNAUTHENTICATED
        assert ask_without_a_token(ray_address) is grpc.StatusCode.OK, "the question is a good one"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0
        assert not is_running(int(shown[1]))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
