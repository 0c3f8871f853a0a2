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
    with pytest.raises(
        ConfigError, match=r"device: must (be cpu, cuda, cuda:N or auto|not be empty), got"
    ):
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


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 7, 8, 256, 257, 300, 1024])
def test_the_ladder_ends_with_the_largest_batch(max_num_seqs: int) -> None:
    sizes = graph_sizes(max_num_seqs)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, max_num_seqs)
    # No batch is filled up by more than a few rows.
    assert all(after - before <= 16 for before, after in pairwise(sizes))


def test_a_gpu_whose_driver_is_too_old_is_refused_with_both_versions(monkeypatch) -> None:
    problem = "a driver for CUDA 12.4, and kernels built with CUDA 13.0"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    monkeypatch.setattr(ops, "has_cuda", lambda: True)
    monkeypatch.setattr(ops, "why_unusable", lambda _: problem)
    with pytest.raises(ConfigError, match=f"^device: must run the kernels, got {problem} for cu"):
        CudaDevice.open(0)
