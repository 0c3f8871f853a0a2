"""A GPU for the worker where there is none: torch's part played on the CPU, our kernels emulated.

Tensors of the device are wrappers around tensors of the CPU. Every operation of torch passes
through one function, which refuses to mix devices as a GPU would, and our kernels find the wrapped
memory. What a GPU does later is done here at once, with two exceptions that would hide bugs: the
stream that moves blocks does nothing until somebody waits for it, and a graph replays the
operations that were captured, on the same memory, without running the model's Python again.

Needs kernels built with the emulator.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from worker_svc import ops
from worker_svc.cuda_device import CudaDevice

DEVICE_TYPE = "emu"

# Operations that may read one device and write the other, or make the host wait for the device.
_BETWEEN_DEVICES = {"aten::copy_", "aten::_to_copy", "aten::to"}
_WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal"}


class EmulatedTensor(torch.Tensor):
    """A tensor of the device; `inner` holds its memory."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> EmulatedTensor:
        """Wrap a tensor of the CPU."""
        wrapper: EmulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(DEVICE_TYPE, 0),
        )
        wrapper.inner = inner
        return wrapper

    def data_ptr(self) -> int:
        """Return the address of the wrapped memory: what our kernels ask for."""
        return self.inner.data_ptr()

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Return True: our kernels take it for a tensor of a GPU."""
        return True

    def __repr__(self, **_: Any) -> str:
        """Return the wrapped tensor's text."""
        return f"emulated({self.inner!r})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation of torch on the wrapped memory."""
        return Machine.current.run(func, args, kwargs or {})


class Machine(TorchDispatchMode):
    """What the device does: at once, or in a graph that is being captured, or later in a stream."""

    current: Machine

    def __init__(self) -> None:
        super().__init__()
        self.captured: list[Callable[[], None]] | None = None
        self.stream: EmulatedStream | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """See EmulatedTensor: operations that make tensors have none to be found by."""
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation of torch, on the device if its tensors are there."""
        name = func.name().partition(".")[0]
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        on_device = [isinstance(each, EmulatedTensor) for each in tensors]
        devices = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.device)]
        asked = devices[0] if devices else None
        to_device = asked is not None and asked.type == DEVICE_TYPE
        if not any(on_device) and not to_device:
            return func(*args, **kwargs)
        if name not in _BETWEEN_DEVICES and any(on_device):
            # A number may be the host's: a GPU is given its value.
            mixed = [
                each.shape
                for each, is_there in zip(tensors, on_device, strict=True)
                if not is_there and each.dim() > 0
            ]
            if mixed:
                raise RuntimeError(f"{name}: tensors of the CPU, {mixed}, beside the device's")
        if self.captured is not None:
            stays = name not in _BETWEEN_DEVICES or (
                all(on_device) and (asked is None or to_device)
            )
            if name in _WAITS or not stays:
                raise RuntimeError(f"{name}: makes the host wait while a graph is captured")
        inner_args, inner_kwargs = tree_map(_unwrap, args), tree_map(_unwrap, kwargs)
        result = func(*inner_args, **inner_kwargs)
        if self.captured is not None:
            self._capture(func, inner_args, inner_kwargs, result)
        leaves_device = asked is not None and not to_device
        if leaves_device or (name == "aten::copy_" and not on_device[0]):
            return args[0] if name == "aten::copy_" else result
        return tree_map(_wrap, _same(result, inner_args, args))

    def kernel(self, operation: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run one of our kernels: now, later if its stream is a lazy one, again in a graph."""
        if self.stream is not None:
            self.stream.work.append(lambda: operation(*args))
            return None
        if self.captured is not None:
            self.captured.append(lambda: operation(*args))
        return operation(*args)

    def _capture(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Note an operation so that a replay writes its results where they are now."""
        assert self.captured is not None
        results = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        owned = {
            each.untyped_storage().data_ptr()
            for each in tree_leaves((args, kwargs))
            if isinstance(each, torch.Tensor)
        }

        def replay() -> None:
            again = [
                each
                for each in tree_leaves(func(*args, **kwargs))
                if isinstance(each, torch.Tensor)
            ]
            for new, old in zip(again, results, strict=True):
                # A view, or an operation in place, has written there already.
                if old.untyped_storage().data_ptr() not in owned and old.numel() > 0:
                    old.copy_(new)

        self.captured.append(replay)


def _unwrap(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.inner if isinstance(value, EmulatedTensor) else value


def _wrap(value: Any) -> Any:
    return EmulatedTensor(value) if type(value) is torch.Tensor else value


def _same(result: Any, inner_args: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    """Return an argument itself where an operation in place returns it."""
    for inner, arg in zip(inner_args, args, strict=True):
        if result is inner:
            return arg
    return result


class EmulatedStream:
    """A stream. The compute stream is never behind; another does nothing until it is waited for."""

    cuda_stream = 0

    def __init__(self) -> None:
        self.work: list[Callable[[], Any]] = []

    def catch_up(self, count: int) -> None:
        """Do what was started before the `count`-th piece of work."""
        while self.work and count > 0:
            self.work.pop(0)()
            count -= 1

    def wait_event(self, event: EmulatedEvent) -> None:
        """Do what the event stands for."""
        event.synchronize()

    def wait_stream(self, stream: EmulatedStream) -> None:
        """Do what the other stream has yet to do."""
        stream.catch_up(len(stream.work))


class EmulatedEvent:
    """A moment of a stream."""

    def __init__(self) -> None:
        self._stream: EmulatedStream | None = None
        self._done = False

    def record(self, stream: EmulatedStream) -> None:
        """See cuda_device.Event."""
        self._stream, self._done = stream, False
        stream.work.append(self._come)

    def _come(self) -> None:
        self._done = True

    def synchronize(self) -> None:
        """See cuda_device.Event."""
        while self._stream is not None and not self._done:
            self._stream.catch_up(1)

    def elapsed_time(self, end: EmulatedEvent) -> float:
        """Return a time that is no time: nothing here takes as long as it would."""
        assert self._done and end._done, "a time was asked for before it had come"
        return 1.0


class EmulatedGraph:
    """What was captured."""

    def __init__(self, work: list[Callable[[], None]]) -> None:
        self._work = work
        self.num_replays = 0

    def replay(self) -> None:
        """See cuda_device.Graph."""
        self.num_replays += 1
        for each in self._work:
            each()


class _KernelsOfDevice:
    """Our kernels, told to the machine where their tensors are the device's."""

    def __init__(self, kernels: types.ModuleType) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._kernels, name)

        def run(*args: Any) -> Any:
            if name in _NOT_OF_DEVICE or not any(_is_on_device(each) for each in args):
                return operation(*args)
            return Machine.current.kernel(operation, args)

        return run


# Of the host, though it is told the shapes of device tensors.
_NOT_OF_DEVICE = {"plan_attention"}


def _is_on_device(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, EmulatedTensor)


class EmulatedDevice(CudaDevice):
    """A CudaDevice whose GPU is the emulator. Only inside `emulated_gpu`."""

    def make_torch_device(self, index: int) -> torch.device:
        """See CudaDevice."""
        return torch.device(DEVICE_TYPE, index)

    @property
    def kv_cache_dtypes(self) -> tuple[torch.dtype, ...]:
        """See CudaDevice."""
        return (torch.float8_e4m3fn,)

    @property
    def isa(self) -> str:
        """See Device."""
        return "emulated"

    def new_stream(self) -> Any:
        """See CudaDevice."""
        return EmulatedStream()

    def new_event(self, *, timing: bool = False) -> Any:
        """See CudaDevice."""
        return EmulatedEvent()

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See CudaDevice."""
        return torch.empty(tuple(shape), dtype=dtype)

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """See CudaDevice."""
        return _on_stream(stream)

    def capture(self, work: Callable[[], None], pool: Any) -> Any:
        """See CudaDevice."""
        machine = Machine.current
        machine.captured = captured = []
        try:
            work()
        finally:
            machine.captured = None
        return EmulatedGraph(captured)

    def new_pool(self) -> Any:
        """See CudaDevice."""

    def synchronize(self) -> None:
        """See CudaDevice."""
        for stream in (self.compute_stream, self.copy_stream):
            stream.catch_up(len(stream.work))

    def memory_bytes(self) -> tuple[int, int]:
        """See CudaDevice."""
        return 900 << 20, 1 << 30

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """See CudaDevice."""
        work()
        return 1 << 20

    def start_thread(self, num_threads: int | None) -> None:
        """See CudaDevice; modes of torch are each thread's own."""
        torch.set_num_threads(1)


@contextmanager
def _on_stream(stream: EmulatedStream) -> Iterator[None]:
    machine = Machine.current
    before, machine.stream = machine.stream, stream
    try:
        yield
    finally:
        machine.stream = before


_registered: list[object] = []


def _register() -> None:
    """Make the device known to torch, once in the life of the process."""
    if _registered:
        return

    class Guard(torch._C._acc.DeviceGuard):  # type: ignore[name-defined, misc]
        def type_(self) -> Any:
            return torch._C._autograd.DeviceType.PrivateUse1

    class Hooks(torch._C._acc.PrivateUse1Hooks):  # type: ignore[name-defined, misc]
        def is_available(self) -> bool:
            return True

        def has_primary_context(self, index: int) -> bool:
            return True

        def is_built(self) -> bool:
            return True

    torch.utils.rename_privateuse1_backend(DEVICE_TYPE)
    _registered.extend((Guard(), Hooks()))
    torch._C._acc.register_python_privateuseone_hook(_registered[1])
    torch._C._acc.register_python_privateuseone_device_guard(_registered[0])
    module = types.ModuleType(f"torch.{DEVICE_TYPE}")
    module.__dict__.update(
        _is_in_bad_fork=lambda: False,
        _lazy_init=lambda: None,
        is_initialized=lambda: True,
        is_available=lambda: True,
        current_device=lambda: 0,
        device_count=lambda: 1,
        manual_seed_all=lambda seed: None,
    )
    torch._register_device_module(DEVICE_TYPE, module)


@contextmanager
def emulated_gpu() -> Iterator[EmulatedDevice]:
    """A GPU for the length of a block, in the thread that runs it."""
    _register()
    kernels = ops._C
    Machine.current = Machine()
    ops._C = _KernelsOfDevice(kernels)  # type: ignore[assignment]
    try:
        with torch.inference_mode(), Machine.current:
            yield EmulatedDevice(0)
    finally:
        ops._C = kernels
