"""What a worker needs of a device: to place a step's arrays, to fetch results, to mark moments.

A GPU runs work some time after it was started, so a result that is fetched must be waited for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt
import torch

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """The memory that the largest step leaves.

    Attributes:
        free_bytes: memory that a cache could take.
        default_bytes: memory that it takes unless the operator sets its size.
    """

    free_bytes: int
    default_bytes: int


class Fetched(Protocol):
    """Tensors on their way to the host."""

    def wait(self) -> list[Array]:
        """Wait for them and return them; from any thread, any number of times."""


class Device(Protocol):
    """The CPU, or a GPU.

    Attributes:
        name: "cpu", "cuda:0" ...
        torch_device: where tensors are made.
        is_immediate: whether work is done when the call that starts it returns.
    """

    name: str
    torch_device: torch.device
    is_immediate: bool

    @property
    def kv_cache_dtypes(self) -> tuple[torch.dtype, ...]:
        """Types that a cache may hold, apart from the model's own."""

    @property
    def isa(self) -> str:
        """Instruction set of the kernels, e.g. "avx512_bf16" or "sm_90"."""

    @property
    def gpu(self) -> str:
        """Kind of the GPU, e.g. "NVIDIA H200, 132 multiprocessors"; "" of a CPU."""

    def start_thread(self, num_threads: int | None) -> None:
        """Prepare the calling thread to compute here.

        Args:
            num_threads: of kernels and dense layers on the CPU; None takes one per usable core.
        """

    def start_waiting_thread(self) -> None:
        """Prepare the calling thread to wait for results; it starts no work."""

    def release_memory(self) -> None:
        """Give the system what torch keeps of memory that no tensor needs any more."""

    def is_lost(self) -> bool:
        """Whether this process can never compute on the device again."""

    def place(self, arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """Return arrays as tensors on the device, of the same shapes and dtypes, by name.

        On a GPU they are copies, and the arrays may be changed once this has returned.
        """

    def fetch(self, tensors: Sequence[torch.Tensor]) -> Fetched:
        """Begin to copy tensors to the host, after all work that was started before."""

    def mark(self) -> Any:
        """Return the moment when all work that was started before is done, for `elapsed_us`."""

    def elapsed_us(self, start: Any, end: Any) -> int:
        """Return the microseconds between two moments that have passed."""

    def profile_memory(
        self,
        prepare: Callable[[], Callable[[], None]],
        utilization: float | None,
        lend: Callable[[], Sequence[torch.Tensor]],
        held_bytes: int,
    ) -> MemoryProfile:
        """Return the memory that is left for the cache beside all else that is held, and a step.

        Args:
            prepare: makes what is held beside the cache, where that shows what it takes; returns
                what runs the largest step and, as long as it lives, holds all that was made.
            utilization: share for weights, activations and cache together, in (0, 1], of a GPU's
                memory, or of what this process found free; None for the usual one.
            lend: returns the tensors of a cache like that which `prepare` makes, and which the
                real cache, of as many tensors, stands in place of later.
            held_bytes: weights, and a guess at the largest step, where nothing shows what it takes.
        """
