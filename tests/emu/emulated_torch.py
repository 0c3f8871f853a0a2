"""Torch's part of a GPU where there is none, played on the CPU: tensors, streams, events, graphs.

Tensors of the device are wrappers around tensors of the CPU. Every operation of torch passes
through one function, which refuses to mix devices as a GPU would, and our kernels find the wrapped
memory. What a GPU does later is done here at once, with two exceptions that would hide bugs: the
stream that moves blocks does nothing until something waits for it, and a graph replays the
operations that were captured, on the same memory, without running the model's Python again.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE_TYPE = "emu"

# Operations that may read one device and write the other, or make the host wait for the device.
_BETWEEN_DEVICES = {"aten::copy_", "aten::_to_copy", "aten::to"}
# Operations that make tensors and start nothing.
_ALLOCATIONS = {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty"}
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
    """What the device does: at once, or in a graph that is being captured, or later in a stream.

    Attributes:
        launches: kernels of torch so far, by name; an operation counts as one.
        captured: of a graph that is being captured.
        stream: that work is for; None for the compute stream.
    """

    current: Machine

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
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
        if not func.is_view and name not in _ALLOCATIONS and _has_elements(result):
            self.launches[name] += 1
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


def _has_elements(result: Any) -> bool:
    return any(isinstance(each, torch.Tensor) and each.numel() > 0 for each in tree_leaves(result))


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


_registered: list[object] = []


def register() -> None:
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
