"""Where a worker computes: how a step's arrays get there, and what comes of it back.

A GPU does later what it is told now, so that what is fetched from it is waited for, not there.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt
import torch

from quire.observe.log import get_logger
from worker_svc import ops
from worker_svc.device.memory import available_memory_bytes
from worker_svc.layers.invariant_linear import padded_rows

log = get_logger()

Array = npt.NDArray[Any]


# Of the host's memory, for the cache of a worker on the CPU.
CACHE_SHARE_OF_FREE_MEMORY = 0.25
MAX_DEFAULT_CACHE_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """What the largest step leaves.

    Attributes:
        free_bytes: that a cache could take.
        default_bytes: that it takes unless somebody asks for another size.
    """

    free_bytes: int
    default_bytes: int


class Fetched(Protocol):
    """Tensors on their way to the host."""

    def wait(self) -> list[Array]:
        """Return them, once they are there; from any thread, any number of times."""


class Device(Protocol):
    """The CPU, or a GPU.

    Attributes:
        name: "cpu", "cuda:0" ...
        torch_device: for tensors.
        is_immediate: whether what it is told is done on return.
    """

    name: str
    torch_device: torch.device
    is_immediate: bool

    @property
    def kv_cache_dtypes(self) -> tuple[torch.dtype, ...]:
        """Types that a cache may hold beside the model's own."""

    @property
    def isa(self) -> str:
        """Instruction set of the kernels, e.g. "avx512_bf16" or "sm_90"."""

    def start_thread(self, num_threads: int | None) -> None:
        """Prepare the calling thread to compute here.

        Args:
            num_threads: of kernels and dense layers on the CPU; None takes one per usable core.
        """

    def start_waiting_thread(self) -> None:
        """Prepare the calling thread to wait for what is computed here, and for nothing else."""

    def is_lost(self) -> bool:
        """Whether nothing can be computed here any more, in this process."""

    def place(self, arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """Return the arrays as tensors here; they may be changed once this has returned."""

    def fetch(self, tensors: Sequence[torch.Tensor]) -> Fetched:
        """Begin to copy tensors to the host, as they are after all that was started before."""

    def mark(self) -> Any:
        """Return the moment when all that was started before is done, for `elapsed_us`."""

    def elapsed_us(self, start: Any, end: Any) -> int:
        """Return the microseconds between two moments that have passed."""

    def padded_rows(self, num_rows: int, dtype: torch.dtype) -> int:
        """Return how many rows to compute so that linear layers are invariant and quick."""

    def profile_memory(self, largest_step: Callable[[], None], utilization: float) -> MemoryProfile:
        """Run the largest step and see how much memory it leaves for the cache.

        Args:
            largest_step: runs it.
            utilization: share of a GPU's memory for weights, activations and cache together.
        """


class CpuDevice:
    """The host's own processor, which does at once what it is told.

    Attributes:
        name: "cpu".
        torch_device: for tensors.
        is_immediate: True.
    """

    def __init__(self) -> None:
        self.name = "cpu"
        self.torch_device = torch.device("cpu")
        self.is_immediate = True

    @property
    def kv_cache_dtypes(self) -> tuple[torch.dtype, ...]:
        """See Device."""
        return (torch.int8,)

    @property
    def isa(self) -> str:
        """See Device."""
        return ops.isa()

    def start_thread(self, num_threads: int | None) -> None:
        """See Device: torch counts threads for each thread that calls it."""
        count = num_threads or len(os.sched_getaffinity(0))
        torch.set_num_threads(count)
        ops.set_num_threads(count)

    def start_waiting_thread(self) -> None:
        """See Device."""

    def is_lost(self) -> bool:
        """See Device."""
        return False

    def place(self, arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """See Device; the tensors share the arrays' memory."""
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def fetch(self, tensors: Sequence[torch.Tensor]) -> Fetched:
        """See Device."""
        return _Here([tensor.numpy() for tensor in tensors])

    def mark(self) -> int:
        """See Device."""
        return time.perf_counter_ns()

    def elapsed_us(self, start: int, end: int) -> int:
        """See Device."""
        return (end - start) // 1000

    def padded_rows(self, num_rows: int, dtype: torch.dtype) -> int:
        """See Device."""
        return padded_rows(num_rows, dtype)

    def profile_memory(self, largest_step: Callable[[], None], utilization: float) -> MemoryProfile:
        """See Device: a share of what is free then, since other programs live here as well.

        Raises:
            ConfigError: the machine does not say how much is free.
        """
        largest_step()
        free = available_memory_bytes()
        default = min(int(free * CACHE_SHARE_OF_FREE_MEMORY), MAX_DEFAULT_CACHE_BYTES)
        return MemoryProfile(free, default)


class _Here:
    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = arrays

    def wait(self) -> list[Array]:
        return self._arrays


def open_device(name: str) -> Device:
    """Return a device by its name.

    Args:
        name: "cpu", "cuda" or "cuda:N"; "auto" or "auto:N" for that GPU if there is one.

    Raises:
        ConfigError: there is none of this name here; says why.
    """
    from worker_svc.device.cuda import CudaDevice

    kind, _, index = name.partition(":")
    if kind == "auto" and torch.cuda.device_count() > 0 and not ops.has_cuda():
        log.warning("gpu_unused", reason="the kernels were built without CUDA; install with nvcc")
        kind = "cpu"
    if kind == "cpu" or (kind == "auto" and torch.cuda.device_count() == 0):
        return CpuDevice()
    return CudaDevice.open(int(index or 0))
