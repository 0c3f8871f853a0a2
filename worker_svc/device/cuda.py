"""A GPU: a stream to compute on, one to move blocks on, pinned memory between it and the host."""

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch

from quire.contract.errors import ConfigError
from quire.garbage import without_collections
from worker_svc import ops
from worker_svc.device.base import Array, MemoryProfile

# For two steps under way and one that is written; a step uploads a few times.
UPLOAD_BUFFERS = 12
# For what torch's segments leave between tensors, which is not the same in each step.
SPARE_BYTES = 2**27
# The first that converts float8 in hardware.
FLOAT8_CAPABILITY = (8, 9)
LEAST_CAPABILITY = (8, 0)
DEFAULT_GPU_MEMORY_UTILIZATION = 0.9
"""Share of the whole memory for weights, activations and cache."""
_ALIGNMENT = 16
# Of arrays, by numpy's name.
DTYPES = {
    "uint8": torch.uint8,
    "bool": torch.bool,
    "int32": torch.int32,
    "int64": torch.int64,
    "float32": torch.float32,
}


class Event(Protocol):
    """A moment of a stream."""

    def record(self, stream: Any = None) -> None:
        """Set the event to the moment when all work that the stream has now is done."""

    def synchronize(self) -> None:
        """Wait for the moment."""

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds from this moment to another."""


class Graph(Protocol):
    """Work that was captured once and is started again as a whole."""

    def replay(self) -> None:
        """Start the work on the current stream."""


class CudaDevice:
    """One GPU of this machine.

    Args:
        index: number of the GPU.

    Attributes:
        name: "cuda:0" ...
        torch_device: where tensors are made.
        is_immediate: False.
        compute_stream: the stream on which the model computes.
        copy_stream: the stream on which blocks move between device and host beside the model.
        rounding_bytes: that a large tensor takes beyond its own, at most.
    """

    rounding_bytes = 2**21

    def __init__(self, index: int) -> None:
        self.name = f"cuda:{index}"
        self.torch_device = self.make_torch_device(index)
        self.is_immediate = False
        self.compute_stream = self.new_stream()
        self.copy_stream = self.new_stream()
        self._uploads: deque[tuple[torch.Tensor, Event]] = deque()

    @classmethod
    def open(cls, index: int) -> "CudaDevice":
        """Return a GPU after checking that torch and the kernels can use it.

        Raises:
            ConfigError: they cannot; the message says why.
        """
        if torch.version.cuda is None:
            raise ConfigError(
                f"device: must be cpu with a torch without CUDA, got cuda and {torch.__version__}"
            )
        count = torch.cuda.device_count()
        if index >= count:
            raise ConfigError(f"device: must be one of {count} usable GPUs, got cuda:{index}")
        if not ops.has_cuda():
            raise ConfigError(
                "device: must be cpu with kernels built without CUDA, got cuda; install with nvcc"
            )
        # Before torch asks the driver for more than a count, which an old one refuses.
        if problem := ops.driver_problem():
            raise ConfigError(f"device: must have a newer driver, got {problem}")
        if torch.cuda.get_device_capability(index) < LEAST_CAPABILITY:
            raise ConfigError(f"device: must be sm_80 or newer, got an older GPU as cuda:{index}")
        if problem := ops.launch_problem(index):
            raise ConfigError(f"device: must run the kernels, got {problem} for cuda:{index}")
        return cls(index)

    # ---------------------------------------------------------------- beyond Device

    def make_torch_device(self, index: int) -> torch.device:
        """Return torch's device for a GPU."""
        return torch.device("cuda", index)

    @property
    def capability(self) -> tuple[int, int]:
        """Return the compute capability, major and minor."""
        return torch.cuda.get_device_capability(self.torch_device)

    @property
    def card(self) -> tuple[str, int]:
        """Return the name, and the number of multiprocessors."""
        properties = torch.cuda.get_device_properties(self.torch_device)
        return properties.name, properties.multi_processor_count

    @property
    def kv_cache_dtypes(self) -> tuple[torch.dtype, ...]:
        """See Device."""
        return (torch.float8_e4m3fn,) if self.capability >= FLOAT8_CAPABILITY else ()

    @property
    def isa(self) -> str:
        """See Device."""
        major, minor = self.capability
        return f"sm_{major}{minor}"

    @property
    def gpu(self) -> str:
        """See Device; a part of a GPU has fewer multiprocessors under the same name."""
        return "{}, {} multiprocessors".format(*self.card)

    def new_stream(self) -> Any:
        """Return a new stream."""
        return torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]

    def new_event(self, *, timing: bool = False) -> Event:
        """Return an event; `elapsed_time` needs events with timing."""
        event: Event = torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]
        return event

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return pinned host memory, which the device reads and writes without the CPU."""
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def pinned_for_long(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return pinned memory of exactly this size; torch's own is rounded to a power of two.

        Raises:
            ConfigError: the system does not pin so much memory.
        """
        tensor = torch.empty(tuple(shape), dtype=dtype)
        if tensor.nbytes > 0:
            if problem := ops.pin_host_memory(tensor):
                raise ConfigError(
                    f"swap_space: must be memory that can be pinned, got {problem} for "
                    f"{tensor.nbytes} bytes"
                )
            weakref.finalize(tensor, ops.unpin_host_memory, tensor.data_ptr())
        return tensor

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Run the work that torch and our kernels start in the block on a stream."""
        return torch.cuda.stream(stream)

    def capture(self, work: Callable[[], None], pool: Any) -> Graph:
        """Return the work that a function starts, as a graph; the work is not done.

        Args:
            work: starts work of fixed shapes and addresses, and waits for nothing.
            pool: from `new_pool`; graphs that share one must not run at the same time.
        """
        # One may free what waits for the GPU when it goes, as plans of attention do, which ends a
        # capture by the same thread.
        with without_collections():
            return self.record(work, pool)

    def record(self, work: Callable[[], None], pool: Any) -> Graph:
        """Capture work; see `capture`, which has what it needs."""
        graph = torch.cuda.CUDAGraph()
        # Other threads may wait for steps meanwhile.
        with torch.cuda.graph(
            graph, pool=pool, stream=self.compute_stream, capture_error_mode="thread_local"
        ):
            work()
        return graph

    def new_pool(self) -> Any:
        """Return memory for the intermediate results of graphs."""
        return torch.cuda.graph_pool_handle()

    def synchronize(self) -> None:
        """Wait for all work that was started."""
        torch.cuda.synchronize(self.torch_device)

    def memory_bytes(self) -> tuple[int, int]:
        """Return the free bytes of the device, torch's own reserve included, and all its bytes."""
        self.release_memory()
        return torch.cuda.mem_get_info(self.torch_device)

    def taken_bytes(self) -> int:
        """Return the bytes of the segments that torch needs for what it holds."""
        self.release_memory()
        return torch.cuda.memory_reserved(self.torch_device)

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """Return the most bytes that torch takes while a function runs, beyond those it holds.

        Torch takes memory in segments, and has more of them than its tensors fill: how much more
        depends on what was there before, for which there is some to spare.
        """
        held = self.taken_bytes()
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        work()
        self.synchronize()
        return torch.cuda.max_memory_reserved(self.torch_device) - held + SPARE_BYTES

    # ---------------------------------------------------------------- see Device

    def start_thread(self, num_threads: int | None) -> None:
        """See Device."""
        torch.cuda.set_device(self.torch_device)
        torch.cuda.set_stream(self.compute_stream)

    def start_waiting_thread(self) -> None:
        """See Device."""
        torch.cuda.set_device(self.torch_device)

    def release_memory(self) -> None:
        """See Device."""
        torch.cuda.empty_cache()

    def is_lost(self) -> bool:
        """See Device; an error of a kernel stays for as long as the process lives."""
        try:
            self.synchronize()
        except RuntimeError:
            return True
        return False

    def place(self, arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """Copy arrays to new memory of the device in one piece, without waiting for it.

        Args:
            arrays: by name.

        Returns:
            Views of that piece.
        """
        places, num_bytes = places_of(arrays)
        buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self.torch_device)
        host, sent = self._next_upload(num_bytes)
        written = host.numpy()
        for name, array in arrays.items():
            start = places[name]
            written[start : start + array.nbytes] = (
                np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            )
        buffer.copy_(host[:num_bytes], non_blocking=True)
        sent.record(self.compute_stream)
        return {
            name: buffer[start : start + arrays[name].nbytes]
            .view(DTYPES[arrays[name].dtype.name])
            .view(arrays[name].shape)
            for name, start in places.items()
        }

    def fetch(self, tensors: Sequence[torch.Tensor]) -> "PinnedCopies":
        """See Device."""
        copies = [self.pinned(tensor.shape, tensor.dtype) for tensor in tensors]
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        done = self.new_event()
        done.record(self.compute_stream)
        return PinnedCopies(copies, done)

    def mark(self) -> Event:
        """See Device."""
        event = self.new_event(timing=True)
        event.record(self.compute_stream)
        return event

    def elapsed_us(self, start: Event, end: Event) -> int:
        """See Device."""
        return round(1000 * start.elapsed_time(end))

    def profile_memory(
        self,
        prepare: Callable[[], Callable[[], None]],
        utilization: float | None,
        lend: Callable[[], Sequence[torch.Tensor]],
        held_bytes: int,
    ) -> MemoryProfile:
        """See Device."""
        share = DEFAULT_GPU_MEMORY_UTILIZATION if utilization is None else utilization
        # Tensors of this small cache that fit into gaps between weights leave nothing for a larger
        # one when they go.
        before = self.taken_bytes()
        lent = lend()
        lent_bytes = self.taken_bytes() - before
        rounding_bytes = len(lent) * self.rounding_bytes
        del lent
        largest_step = prepare()
        largest_step()  # libraries take their memory at their first call
        peak = self.peak_bytes(largest_step)
        free, total = self.memory_bytes()
        free += lent_bytes - rounding_bytes - peak
        taken = total - free
        return MemoryProfile(max(free, 0), max(int(total * share) - taken, 0))

    def _next_upload(self, num_bytes: int) -> tuple[torch.Tensor, Event]:
        """Return pinned memory [bytes] that no copy reads any more, and its event."""
        if len(self._uploads) < UPLOAD_BUFFERS:
            upload = self.pinned((num_bytes,), torch.uint8), self.new_event()
        else:
            upload = self._uploads.popleft()
            upload[1].synchronize()
            if len(upload[0]) < num_bytes:
                upload = self.pinned((2 * num_bytes,), torch.uint8), upload[1]
        self._uploads.append(upload)
        return upload


def places_of(arrays: Mapping[str, Array]) -> tuple[dict[str, int], int]:
    """Return where each array begins in one piece of memory, in bytes, and how long that is."""
    places: dict[str, int] = {}
    num_bytes = 0
    for name, array in arrays.items():
        places[name] = num_bytes
        num_bytes += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    return places, num_bytes


class PinnedCopies:
    """Copies in pinned memory, complete once an event has come.

    Args:
        copies: the copies.
        done: the event.
    """

    def __init__(self, copies: list[torch.Tensor], done: Event) -> None:
        self._copies = copies
        self._done = done

    def wait(self) -> list[Array]:
        """See Fetched."""
        self._done.synchronize()
        return [copy.numpy() for copy in self._copies]
