"""Torch's part of a GPU where there is none, played on the CPU: tensors, streams, events, graphs.

Tensors of the device are wrappers around tensors of the CPU. Every operation of torch passes
through one function, which refuses to mix devices as a GPU would, and our kernels find the wrapped
memory. What a GPU does later is done here at once, where that hides no bug:

- The stream that moves blocks does nothing until something waits for it, and what it shares with
  the compute stream must be ordered by events (see stream_order).
- A copy to the host that nobody has waited for has not come: numbers that mean nothing are there.
- Host memory that a copy reads must stay as it is until something has waited for the copy.
- A graph replays the operations that were captured, on the same memory, without running the model's
  Python again; our kernels start as many blocks as then (see launches). While one is captured, the
  host may not wait.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.emu.device_memory import memory_of_process
from tests.emu.emulated_operations import ALLOCATIONS, of_a_gpu
from tests.emu.launches import capture
from tests.emu.stream_order import Clock, StreamOrder

DEVICE_TYPE = "emu"

# Operations that may read one device and write the other, or make the host wait for the device.
_BETWEEN_DEVICES = {"aten::copy_", "aten::_to_copy", "aten::to"}
_WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal"}


class EmulatedTensor(torch.Tensor):
    """A tensor of the device; `inner` holds its memory."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, *, is_counted: bool = True) -> EmulatedTensor:
        """Wrap a tensor of the CPU, whose memory counts as the device's unless a graph reuses it.

        Raises:
            torch.OutOfMemoryError: the device has no memory left for it.
        """
        wrapper: EmulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=Machine.current.device,
        )
        wrapper.inner = inner
        if is_counted:
            Machine.current.memory.add(wrapper, inner)
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


class _OfThread(threading.local):
    """What each thread has of its own, as with torch.

    Attributes:
        captured: of a graph that is being captured.
        stream: that work is for; None for the compute stream.
        device: that kernels are launched on; the first, unless the thread has chosen another.
    """

    captured: list[Callable[[], None]] | None = None
    stream: EmulatedStream | None = None
    device: int = 0


class Machine(TorchDispatchMode):
    """What the device does: at once, or in a graph that is being captured, or later in a stream.

    Args:
        index: number of the device.

    Attributes:
        device: as torch names it.
        launches: kernels of torch so far, by name; an operation counts as one.
        thread: what holds for the calling thread.
        order: of the work of `compute` and of `copy`, the streams of the device.
        memory: what it holds.
    """

    current: Machine

    def __init__(self, index: int) -> None:
        super().__init__()
        self.device = torch.device(DEVICE_TYPE, index)
        self.launches: Counter[str] = Counter()
        self.thread = _OfThread()
        self.order = StreamOrder()
        self.memory = memory_of_process()
        self.compute, self.copy = EmulatedStream(), EmulatedStream()

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
        if self.thread.captured is not None:
            stays = name not in _BETWEEN_DEVICES or (
                all(on_device) and (asked is None or to_device)
            )
            if name in _WAITS or not stays:
                raise RuntimeError(f"{name}: makes the host wait while a graph is captured")
        inner_args, inner_kwargs = tree_map(_unwrap, args), tree_map(_unwrap, kwargs)
        is_between = name == "aten::copy_" and not all(on_device)
        if is_between and True in (*args[2:], kwargs.get("non_blocking")):
            self._copy_later(*inner_args[:2], to_host=not on_device[0])
            self.launches[name] += 1
            return args[0]
        operation = of_a_gpu(name, func)
        result = operation(*inner_args, **inner_kwargs)
        if not func.is_view and name not in ALLOCATIONS and _has_elements(result):
            self.launches[name] += 1
        if self.thread.captured is not None:
            self._capture(operation, inner_args, inner_kwargs, result)
        leaves_device = asked is not None and not to_device
        if leaves_device or (name == "aten::copy_" and not on_device[0]):
            return args[0] if name == "aten::copy_" else result
        return tree_map(_wrap, _same(result, inner_args, args))

    def check_thread(self) -> None:
        """Raise RuntimeError if the thread's kernels would run on another device than this."""
        if self.thread.device != self.device.index:
            raise RuntimeError(
                f"memory of device {self.device.index} is given to kernels of a thread that "
                f"launches on device {self.thread.device}"
            )

    def kernel(self, operation: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run one of our kernels: now, later if its stream is a lazy one, again in a graph."""
        stream = self.thread.stream or self.compute
        addresses = [
            each.data_ptr() for each in tree_leaves(args) if isinstance(each, torch.Tensor)
        ]

        def start() -> None:
            if stream in (self.compute, self.copy):
                self.order.start(stream.number, operation.__name__, addresses)

        if self.thread.captured is not None:
            # Not the tensors themselves: their memory is free again for what is captured next.
            result, again = capture(operation, args, tree_map(_at_its_address, args))
            self.thread.captured.append(lambda: (start(), again()))
            return result
        start()
        if stream is not self.compute:
            stream.work.append(lambda: operation(*args))
            return None
        return operation(*args)

    def _copy_later(self, out: torch.Tensor, source: torch.Tensor, *, to_host: bool) -> None:
        """Copy between host and device as if the device came to it as late as it can."""
        stream = self.thread.stream or self.compute
        if to_host:
            # The compute stream has done what comes before.
            source = source.clone() if stream is self.compute else source
            stream.work.append(lambda: out.copy_(source))
            out.fill_(torch.nan if out.is_floating_point() else _MEANINGLESS[out.dtype])
            return
        assert stream is self.compute, "nothing uploads on another stream"
        out.copy_(source)
        then = source.clone()

        def check() -> None:
            if not _has_same_bytes(source, then):
                raise RuntimeError("host memory was written before the copy that reads it was done")

        stream.work.append(check)

    def _capture(
        self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Note an operation so that a replay writes its results where they are now."""
        assert self.thread.captured is not None
        results = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        owned = {
            each.untyped_storage().data_ptr()
            for each in tree_leaves((args, kwargs))
            if isinstance(each, torch.Tensor)
        }

        def replay() -> None:
            again = [
                each
                for each in tree_leaves(operation(*args, **kwargs))
                if isinstance(each, torch.Tensor)
            ]
            for new, old in zip(again, results, strict=True):
                # A view, or an operation in place, has written there already.
                if old.untyped_storage().data_ptr() not in owned and old.numel() > 0:
                    old.copy_(new)

        self.thread.captured.append(replay)


def _unwrap(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.inner if _is_on_device(value) else value


def _at_its_address(value: Any) -> Any:
    return EmulatedTensor(value.inner, is_counted=False) if _is_on_device(value) else value


def _is_on_device(value: Any) -> bool:
    return isinstance(value, EmulatedTensor)


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


_MEANINGLESS = {torch.bool: True, torch.uint8: 255, torch.int32: 2**31 - 1, torch.int64: 2**62}


def _has_same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.numpy().tobytes() == other.numpy().tobytes()


class EmulatedStream:
    """A stream.

    The compute stream is behind with copies between device and host alone; another does nothing
    until it is waited for.

    Attributes:
        number: of the stream, its own.
        work: that it has yet to do.
    """

    cuda_stream = 0
    _numbers = count()

    def __init__(self) -> None:
        self.number = next(self._numbers)
        self.work: list[Callable[[], Any]] = []
        # Whichever thread waits does the work, one piece after the other.
        self._works = threading.Lock()

    def catch_up(self, count: int) -> None:
        """Do what was started before the `count`-th piece of work."""
        with self._works:
            while self.work and count > 0:
                self.work.pop(0)()
                count -= 1

    def wait_event(self, event: EmulatedEvent) -> None:
        """Do what the event stands for."""
        event.come()
        Machine.current.order.wait(self.number, event.moment)

    def wait_stream(self, stream: EmulatedStream) -> None:
        """Do what the other stream has yet to do."""
        stream.catch_up(len(stream.work))
        order = Machine.current.order
        order.wait(self.number, order.moment(stream.number))


class EmulatedEvent:
    """A moment of a stream.

    Attributes:
        moment: what comes before it.
    """

    def __init__(self) -> None:
        self._stream: EmulatedStream | None = None
        self._done = False
        self.moment: Clock = Counter()

    def record(self, stream: EmulatedStream) -> None:
        """See cuda.Event."""
        self._stream, self._done = stream, False
        self.moment = Machine.current.order.moment(stream.number)
        stream.work.append(self._set_done)

    def _set_done(self) -> None:
        self._done = True

    def come(self) -> None:
        """Do what comes before it, for a stream that waits."""
        while self._stream is not None and not self._done:
            self._stream.catch_up(1)

    def synchronize(self) -> None:
        """See cuda.Event."""
        check_may_wait()
        self.come()
        Machine.current.order.waited |= self.moment

    def elapsed_time(self, end: EmulatedEvent) -> float:
        """Return a time that is no time: nothing here takes as long as it would."""
        if not (self._done and end._done):
            raise RuntimeError("a time was asked for before it had come")
        return 1.0


def check_may_wait() -> None:
    """Raise RuntimeError if a graph is being captured: the host may wait for nothing then."""
    if Machine.current.thread.captured is not None:
        raise RuntimeError("the host waits for the device while a graph is captured")


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
