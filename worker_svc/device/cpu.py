"""The host's own processor."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import torch

from quire.contract.errors import ConfigError
from worker_svc import ops
from worker_svc.device.base import Array, Fetched, MemoryProfile
from worker_svc.device.host_memory import available_memory_bytes

# Of the host's memory that is free, for the cache.
CACHE_SHARE_OF_FREE_MEMORY = 0.25
MAX_DEFAULT_CACHE_BYTES = 4 * 2**30


class CpuDevice:
    """The CPU: work is done when the call that starts it returns.

    Attributes:
        name: "cpu".
        torch_device: where tensors are made.
        is_immediate: True.
    """

    def __init__(self) -> None:
        self.name = "cpu"
        self.torch_device = torch.device("cpu")
        self.is_immediate = True
        # Before weights and caches, of this worker and of others that start beside it.
        self._free_at_start: int | None = None
        with suppress(ConfigError):  # said again where the figure is needed
            self._free_at_start = available_memory_bytes()

    @property
    def kv_cache_dtypes(self) -> tuple[torch.dtype, ...]:
        """See Device."""
        return (torch.int8,)

    @property
    def isa(self) -> str:
        """See Device."""
        return ops.isa()

    @property
    def gpu(self) -> str:
        """See Device."""
        return ""

    def start_thread(self, num_threads: int | None) -> None:
        """See Device; torch keeps the number of threads for each calling thread."""
        count = num_threads or len(os.sched_getaffinity(0))
        torch.set_num_threads(count)
        ops.set_num_threads(count)

    def start_waiting_thread(self) -> None:
        """See Device."""

    def release_memory(self) -> None:
        """See Device; torch keeps none here."""

    def is_lost(self) -> bool:
        """See Device."""
        return False

    def place(self, arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """See Device; the tensors share the memory of the arrays."""
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

    def profile_memory(
        self,
        prepare: Callable[[], Callable[[], None]],
        utilization: float | None,
        lend: Callable[[], Sequence[torch.Tensor]],
        held_bytes: int,
    ) -> MemoryProfile:
        """See Device; the default is a share of the free memory, which other programs use as well.

        Nothing is made or run: it would take the time of a long prompt, and what a step takes goes
        back to the system.

        Raises:
            ConfigError: the machine does not report its free memory.
        """
        free = available_memory_bytes()
        if utilization is None or self._free_at_start is None:
            default = min(int(free * CACHE_SHARE_OF_FREE_MEMORY), MAX_DEFAULT_CACHE_BYTES)
        else:
            default = min(int(self._free_at_start * utilization) - held_bytes, free)
        return MemoryProfile(free, max(default, 0))


class _Here:
    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = arrays

    def wait(self) -> list[Array]:
        return self._arrays
