"""Where a worker computes, by name, and the sizes that a GPU captures."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from launch.cluster.supervisor import ClusterConfig
from quire.contract.errors import ConfigError
from worker_svc import ops
from worker_svc.config import WorkerConfig
from worker_svc.device.cuda import CudaDevice
from worker_svc.device.open import open_device
from worker_svc.steps.graphs import graph_sizes


@pytest.mark.parametrize("name", ["tpu", "cuda:", "cuda:x", "cpu:1"])
def test_a_name_of_no_device_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^device: must be auto, cpu, cuda or cuda:N, got "):
        WorkerConfig(device=name)


def test_what_is_there_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for name in ("cpu", "auto", "auto:3"):
        assert open_device(name).name == "cpu"
    with pytest.raises(ConfigError, match="device: "):
        open_device("cuda:7")


def test_each_rank_has_a_gpu_of_its_own() -> None:
    model = Path(__file__).parent
    for device, expected in {"auto": "auto:1", "cuda": "cuda:1", "cuda:5": "cuda:5"}.items():
        assert ClusterConfig(model=model, device=device).device_of(1) == expected
    assert ClusterConfig(model=model, device="cpu").device_of(1) == "cpu"


def test_a_thread_chooses_the_workers_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "set_stream", chosen.append)
    device = object.__new__(CudaDevice)
    device.torch_device = torch.device("cuda", 1)
    device.compute_stream = object()
    device.start_thread(None)
    device.start_waiting_thread()
    assert chosen == [device.torch_device, device.compute_stream, device.torch_device]


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 7, 8, 256, 257, 300, 1024])
def test_the_ladder_ends_with_the_largest_batch(max_num_seqs: int) -> None:
    sizes = graph_sizes(max_num_seqs)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, max_num_seqs)
    # No batch is filled up by more than a few rows.
    assert all(after - before <= 16 for before, after in pairwise(sizes))


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A GPU, as far as torch counts."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    monkeypatch.setattr(ops, "has_cuda", lambda: True)
    monkeypatch.setattr(ops, "driver_problem", lambda: "")
    return monkeypatch


def test_a_driver_that_is_too_old_is_refused_before_torch_asks_it(one_gpu) -> None:
    problem = "a driver for CUDA 12.4, and kernels built with CUDA 13.0"
    one_gpu.setattr(ops, "driver_problem", lambda: problem)
    one_gpu.setattr(torch.cuda, "get_device_capability", lambda _: pytest.fail("asked"))
    with pytest.raises(ConfigError, match=f"^device: must have a newer driver, got {problem}"):
        CudaDevice.open(0)


def test_a_gpu_that_runs_no_kernel_is_refused_with_its_answer(one_gpu) -> None:
    one_gpu.setattr(ops, "launch_problem", lambda index: f"no kernel image {index}")
    with pytest.raises(ConfigError, match=r"run the kernels, got no kernel image 0 for cuda:0$"):
        CudaDevice.open(0)
