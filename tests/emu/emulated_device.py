"""A GPU for the worker where there is none: torch's part played on the CPU, our kernels emulated.

Needs kernels built with the emulator.
"""

import gc
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from tests.emu.device_memory import Pool
from tests.emu.emulated_backend import register
from tests.emu.emulated_nccl import EmulatedNccl
from tests.emu.emulated_peers import HeldByGraphs, watched_memory
from tests.emu.emulated_torch import (
    DEVICE_TYPE,
    EmulatedEvent,
    EmulatedGraph,
    EmulatedStream,
    EmulatedTensor,
    Machine,
    check_may_wait,
)
from tests.emu.launches import capturing
from worker_svc.device.cuda import CudaDevice
from worker_svc.ops import compiled


class _KernelsOfDevice:
    """Our kernels, run by the machine where their tensors are the device's."""

    def __init__(self, kernels: types.ModuleType) -> None:
        self._kernels = kernels
        self.__file__ = kernels.__file__

    def __getattr__(self, name: str) -> Any:
        if name == "PeerMemory":
            return watched_memory(self._kernels)
        operation = getattr(self._kernels, name)

        def run(*args: Any) -> Any:
            Machine.current.memory.collect()
            if not any(_is_on_device(each) for each in args):
                return operation(*args)
            Machine.current.check_thread()
            if name in _NOT_OF_DEVICE:
                return operation(*args)
            result = Machine.current.kernel(operation, args)
            captured = Machine.current.thread.captured
            if captured is not None and isinstance(args[0], HeldByGraphs):
                args[0].graphs.add(captured[-1])
            return result

        return run


# Of the host, though it takes the shapes of device tensors.
_NOT_OF_DEVICE = {"plan_attention"}


def _is_on_device(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, EmulatedTensor)


DEFAULT_MEMORY_BYTES = 1 << 30


class EmulatedDevice(CudaDevice):
    """A CudaDevice whose GPU is the emulator. Only inside `emulated_gpu`."""

    rounding_bytes = 0

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.compute_stream, self.copy_stream = Machine.current.compute, Machine.current.copy
        self._total_bytes = DEFAULT_MEMORY_BYTES
        self._held_before = Machine.current.memory.held

    def make_torch_device(self, index: int) -> torch.device:
        """See CudaDevice."""
        return torch.device(DEVICE_TYPE, index)

    @property
    def capability(self) -> tuple[int, int]:
        """See CudaDevice."""
        _, major, minor, _ = compiled._C.emulated_card()  # type: ignore[attr-defined]
        return major, minor

    @property
    def card(self) -> tuple[str, int]:
        """See CudaDevice."""
        name, _, _, num_multiprocessors = compiled._C.emulated_card()  # type: ignore[attr-defined]
        return f"emulated {name}", num_multiprocessors

    def new_stream(self) -> Any:
        """See CudaDevice."""
        return EmulatedStream()

    def new_event(self, *, timing: bool = False) -> Any:
        """See CudaDevice."""
        return EmulatedEvent()

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See CudaDevice."""
        return torch.empty(tuple(shape), dtype=dtype)

    def pinned_for_long(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See CudaDevice."""
        return self.pinned(shape, dtype)

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """See CudaDevice."""
        return _on_stream(stream)

    def record(self, work: Callable[[], None], pool: Any) -> Any:
        """See CudaDevice."""
        thread = Machine.current.thread
        with (pool or self.new_pool()).capturing() as keep:
            thread.captured = captured = []
            try:
                with capturing():
                    work()
            finally:
                thread.captured = None
            graph = EmulatedGraph(captured)
            keep(graph)
        return graph

    def new_pool(self) -> Pool:
        """See CudaDevice."""
        return Pool(Machine.current.memory)

    def synchronize(self) -> None:
        """See CudaDevice."""
        check_may_wait()
        for stream in (self.compute_stream, self.copy_stream):
            stream.catch_up(len(stream.work))
            order = Machine.current.order
            order.waited |= order.moment(stream.number)

    def count_memory(self) -> None:
        """Count memory from here on: what is held now is another's."""
        gc.unfreeze()  # a worker that is gone has had what it held left out of collections
        gc.collect()
        self._held_before = Machine.current.memory.held

    @property
    def held_bytes(self) -> int:
        """Memory that is held."""
        return max(0, Machine.current.memory.held - self._held_before)

    @contextmanager
    def limited(self, num_bytes: int) -> Iterator[None]:
        """Have so much memory for the length of a block, beside another's."""
        before, self._total_bytes = self._total_bytes, num_bytes
        try:
            with Machine.current.memory.limited(self._held_before + num_bytes):
                yield
        finally:
            self._total_bytes = before

    def memory_bytes(self) -> tuple[int, int]:
        """See CudaDevice."""
        return self._total_bytes - self.held_bytes, self._total_bytes

    def taken_bytes(self) -> int:
        """See CudaDevice."""
        return self.held_bytes

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """See CudaDevice; memory that kernels' host code allocates counts as well."""

        def to_its_end() -> None:
            work()
            self.synchronize()

        memory = Machine.current.memory
        held = memory.held
        return memory.most(to_its_end) - held

    def start_thread(self, num_threads: int | None) -> None:
        """See CudaDevice; modes of torch are each thread's own."""
        torch.set_num_threads(1)
        self.start_waiting_thread()

    def start_waiting_thread(self) -> None:
        """See CudaDevice."""
        Machine.current.thread.device = self.torch_device.index


@contextmanager
def _on_stream(stream: EmulatedStream) -> Iterator[None]:
    thread = Machine.current.thread
    before, thread.stream = thread.stream, stream
    try:
        yield
    finally:
        thread.stream = before


def _plug_in(index: int) -> None:
    """Make an emulated GPU the one of this process."""
    register()
    Machine.current = Machine(index)
    dist.ProcessGroupNCCL = EmulatedNccl  # type: ignore[attr-defined]
    compiled._C = _KernelsOfDevice(compiled._C)  # type: ignore[assignment]


@contextmanager
def emulated_gpu(index: int = 0) -> Iterator[EmulatedDevice]:
    """A GPU for the length of a block, in the thread that runs it."""
    kernels = compiled._C
    _plug_in(index)
    try:
        with torch.inference_mode(), Machine.current:
            device = EmulatedDevice(index)
            device.start_waiting_thread()
            yield device
    finally:
        compiled._C = kernels


class EmulatedDeviceOfProcess(EmulatedDevice):
    """The device of a whole process, for each thread that prepares for it."""

    def __init__(self, index: int) -> None:
        _plug_in(index)
        super().__init__(index)
        self._modes: list[AbstractContextManager[Any]] = []

    def start_waiting_thread(self) -> None:
        """See CudaDevice; the thread keeps its modes for as long as it lives."""
        super().start_waiting_thread()
        for mode in (torch.inference_mode(), Machine.current):
            mode.__enter__()
            self._modes.append(mode)


@contextmanager
def on_the_same_gpu() -> Iterator[None]:
    """Let another thread use the emulated GPU; one at a time may."""
    with torch.inference_mode(), Machine.current:
        yield


@contextmanager
def thread_of(gpu: CudaDevice) -> Iterator[None]:
    """Let another thread use a GPU, emulated or not, on the stream that the model computes on."""
    if isinstance(gpu, EmulatedDevice):
        with on_the_same_gpu():
            yield
        return
    gpu.start_thread(None)
    yield
