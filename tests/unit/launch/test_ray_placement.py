import asyncio
import threading
from pathlib import Path

import pytest

from launch.cluster.supervisor import Cluster, ClusterConfig, LauncherName
from launch.launchers.ray_placement import check_host, choose_bundle, choose_strategies
from launch.launchers.ray_thread import RayThread
from quire.contract.errors import ConfigError, UnavailableError

CPU_NODE = {"CPU": 4.0, "memory": 1e9}
GPU_NODE = {"CPU": 8.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("device", "size", "nodes", "takes_gpu"),
    [
        ("cpu", 1, [GPU_NODE], False),
        ("cuda", 1, [CPU_NODE], True),
        ("auto", 2, [GPU_NODE], True),
        ("auto", 3, [GPU_NODE, CPU_NODE], False),
        ("auto", 3, [GPU_NODE, GPU_NODE], True),
        ("auto", 1, [CPU_NODE], False),
    ],
)
def test_a_worker_takes_a_gpu_where_each_can_have_one(
    device: str, size: int, nodes: list[dict[str, float]], takes_gpu: bool
) -> None:
    expected = {"CPU": 2.0, "GPU": 1.0} if takes_gpu else {"CPU": 2.0}
    assert choose_bundle(device, 2, size, nodes) == expected


@pytest.mark.parametrize(
    ("bundle", "size", "nodes", "strategies"),
    [
        ({"CPU": 1.0}, 4, [CPU_NODE], ["STRICT_PACK", "PACK"]),
        ({"CPU": 1.0}, 5, [CPU_NODE, CPU_NODE], ["PACK"]),
        ({"CPU": 1.0, "GPU": 1.0}, 2, [CPU_NODE, GPU_NODE], ["STRICT_PACK", "PACK"]),
        ({"CPU": 1.0, "GPU": 1.0}, 3, [GPU_NODE, GPU_NODE], ["PACK"]),
    ],
)
def test_one_node_is_tried_first_where_one_could_hold_all(
    bundle: dict[str, float], size: int, nodes: list[dict[str, float]], strategies: list[str]
) -> None:
    assert [name for name, _ in choose_strategies(bundle, size, nodes)] == strategies


@pytest.mark.parametrize(
    ("bundle", "size", "nodes"),
    [
        ({"CPU": 1.0}, 9, [CPU_NODE, CPU_NODE]),
        ({"CPU": 3.0}, 3, [CPU_NODE, CPU_NODE]),  # 8 CPUs in all, but 1 left over on each
        ({"CPU": 1.0, "GPU": 1.0}, 1, [CPU_NODE]),
        ({"CPU": 1.0}, 1, []),
    ],
)
def test_what_never_fits_is_refused_with_what_there_is(
    bundle: dict[str, float], size: int, nodes: list[dict[str, float]]
) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_strategies(bundle, size, nodes)
    assert f"{size} workers" in caught.value.message
    assert f"{len(nodes)} nodes" in caught.value.message
    assert f'"CPU": {bundle["CPU"]}' in caught.value.message


def test_a_scheduler_that_workers_elsewhere_cannot_reach_is_refused() -> None:
    check_host("127.0.0.1", "10.0.0.1", ["10.0.0.1", "10.0.0.1"])
    check_host("10.0.0.1", "10.0.0.1", ["10.0.0.1", "10.0.0.2"])
    check_host("0.0.0.0", "10.0.0.1", ["10.0.0.2"])
    for host in ("127.0.0.1", "localhost", "[::1]"):
        with pytest.raises(ConfigError) as caught:
            check_host(host, "10.0.0.1", ["10.0.0.1", "10.0.0.2"])
        assert all(part in caught.value.message for part in (host, "10.0.0.1", "10.0.0.2"))


def test_without_ray_the_error_shows_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    config = ClusterConfig(model=Path(__file__).parent, launcher=LauncherName.RAY)
    with pytest.raises(ConfigError, match=r"pip install 'quire-serve\[ray\]'"):
        Cluster(config)


async def test_a_call_that_hangs_is_given_up_and_the_thread_goes_on() -> None:
    thread, hang = RayThread(), threading.Event()
    with pytest.raises(UnavailableError, match=r"sleeping took more than 0\.05 s"):
        await thread.call(hang.wait, 0.05, "sleeping")
    later = asyncio.create_task(thread.call(threading.get_ident, 20, "naming the thread"))
    hang.set()
    ident = await later
    assert ident != threading.get_ident()
    assert await thread.call(threading.get_ident, 20, "naming the thread") == ident
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0, 20, "dividing")


async def test_a_cancellation_beside_an_answer_is_not_lost() -> None:
    thread, is_answered = RayThread(), threading.Event()
    call = asyncio.create_task(thread.call(lambda: 1, 20, "answering"))
    later = asyncio.create_task(thread.call(is_answered.set, 20, "reporting"))
    await asyncio.sleep(0)
    # The loop stands still: the answer is the first thing that it finds afterwards.
    assert is_answered.wait(20)
    asyncio.get_running_loop().call_soon(call.cancel)
    await asyncio.wait({call, later})
    assert call.cancelled()
