"""The stand-in of NCCL refuses what NCCL answers with a hang, or does not survive."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.emu.emulated_device import EmulatedDevice, on_the_same_gpu
from tests.emu.emulated_nccl import EmulatedNccl, Options


def run_two(
    gpu: EmulatedDevice, run: Callable[[EmulatedNccl, int, torch.device], Any]
) -> list[Any]:
    """Run a function as two ranks of a group; return what each returns or raises."""
    store = dist.HashStore()

    def rank(index: int) -> Any:
        with on_the_same_gpu():
            group = EmulatedNccl(store, index, 2, Options())
            group.eager_connect_single_device(gpu.torch_device)
            try:
                return run(group, index, gpu.torch_device)
            except RuntimeError as error:
                return str(error)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(rank, range(2)))


def test_ranks_exchange_the_memory_of_their_devices(emulated_gpu: EmulatedDevice) -> None:
    def run(group: EmulatedNccl, rank: int, device: torch.device) -> list[list[float]]:
        own = torch.full((2,), rank + 1.0, device=device)
        parts = [torch.zeros(2, device=device) for _ in range(2)]
        group.allgather([parts], [own])
        total = own.clone()
        group.allreduce([total])
        group.broadcast([own])
        return [each.cpu().tolist() for each in (*parts, total, own)]

    expected = [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [1.0, 1.0]]
    assert run_two(emulated_gpu, run) == [expected, expected]


def test_ranks_whose_calls_differ_are_refused(emulated_gpu: EmulatedDevice) -> None:
    def by_name(group: EmulatedNccl, rank: int, device: torch.device) -> None:
        call = group.broadcast if rank == 0 else group.allreduce
        call([torch.zeros(2, device=device)])

    def by_shape(group: EmulatedNccl, rank: int, device: torch.device) -> None:
        group.broadcast([torch.zeros(2 + rank, device=device)])

    for run in (by_name, by_shape):
        for error in run_two(emulated_gpu, run):
            assert error.startswith("NCCL: ranks must call the same operations, got ['1 ")


def test_tensors_of_the_host_are_refused(emulated_gpu: EmulatedDevice) -> None:
    def run(group: EmulatedNccl, rank: int, device: torch.device) -> None:
        group.broadcast([torch.zeros(2)])

    for error in run_two(emulated_gpu, run):
        assert error.startswith("NCCL: must be given contiguous tensors of a GPU")


def test_a_group_that_a_graph_holds_is_not_aborted(emulated_gpu: EmulatedDevice) -> None:
    def run(group: EmulatedNccl, rank: int, device: torch.device) -> list[float]:
        values = torch.full((2,), rank + 1.0, device=device)
        graph = emulated_gpu.capture(lambda: group.allreduce([values]) and None, None)
        values.fill_(rank + 5.0)
        graph.replay()
        with pytest.raises(RuntimeError, match="a graph holds operations"):
            group.abort()
        del graph
        group.abort()
        with pytest.raises(RuntimeError, match="the group was aborted"):
            group.allreduce([values])
        found: list[float] = values.cpu().tolist()
        return found

    assert run_two(emulated_gpu, run) == [[11.0, 11.0], [11.0, 11.0]]
