"""What a model computes on the CPU, recorded once and replayed: its kernels run without Python.

The counterpart of a CUDA graph. A recording keeps addresses and sizes; what changes from step to
step is written to the memory that it reads.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from worker_svc import ops
from worker_svc.device.base import Array

_ALIGNMENT = 64

_EMPTY = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
}


class CpuGraph:
    """Work that was recorded.

    Attributes:
        result: what it returned; each replay writes it anew, and another graph of the same memory
            may overwrite it.
    """

    def __init__(self, pieces: Sequence[Callable[[], object]], result: torch.Tensor) -> None:
        self._pieces = tuple(pieces)
        self.result = result

    def replay(self) -> torch.Tensor:
        """Run the work again and return the result; in inference mode, as it was recorded."""
        for piece in self._pieces:
            piece()
        return self.result


class GraphMemory:
    """Memory of what graphs compute on the way; graphs that never run at the same time share it."""

    def __init__(self) -> None:
        self._free: dict[int, list[Array]] = defaultdict(list)
        self._chunks: dict[int, Array] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes in all, used or free."""
        return sum(chunk.nbytes for chunk in self._chunks.values())

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor whose memory is free again when no tensor shows it any more."""
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        size = max(_ALIGNMENT, 1 << (num_bytes - 1).bit_length())
        free = self._free[size]
        chunk = free.pop() if free else self._new_chunk(size)
        # Storage of the tensor, and of all its views, holds this view of the chunk.
        held = chunk.view()
        weakref.finalize(held, free.append, chunk).atexit = False
        return torch.from_numpy(held)[:num_bytes].view(dtype).view(tuple(shape))

    def unheld(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that does not keep its memory from being used again.

        A tensor whose memory is not from here is returned as it is.
        """
        chunk = self._chunks.get(_address(tensor))
        if chunk is None:
            return tensor
        whole = torch.from_numpy(chunk).view(tensor.dtype)
        return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _new_chunk(self, size: int) -> Array:
        memory = np.empty(size + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        chunk = memory[start : start + size]
        self._chunks[chunk.ctypes.data] = chunk
        return chunk


@torch.inference_mode()
def record(work: Callable[[], torch.Tensor], memory: GraphMemory) -> CpuGraph:
    """Run some work and return its graph, whose result is there already.

    Kernels are recorded with their parameters. Of torch's own operations those that make views or
    empty tensors leave nothing to replay, and others are called again.

    Raises:
        RuntimeError: it reads a tensor's values on the host, which a replay could not do.
    """
    recorder = _Recorder(memory)
    try:
        with recorder:
            result = work()
    finally:
        pieces = recorder.finish()
    return CpuGraph(pieces, memory.unheld(result))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, memory: GraphMemory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory
        self._pieces: list[Callable[[], object]] = []
        self._begin()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch imports its compiler, for more than a second, at the first recording.
        return False

    def finish(self) -> list[Callable[[], object]]:
        """Stop recording and return what to call, in order."""
        self._kernels.stop()
        if len(self._kernels) > 0:
            self._pieces.append(self._kernels.replay)
        return self._pieces

    def _begin(self) -> None:
        self._kernels = ops.Recording()
        self._kernels.start()

    def _call_again(self, call: Callable[[], object]) -> None:
        self.finish().append(call)
        self._begin()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """See TorchDispatchMode."""
        named = kwargs or {}
        result = func(*args, **named)
        tensors = [each for each in (*args, *named.values()) if isinstance(each, torch.Tensor)]
        unheld = {name: self._unheld(value) for name, value in named.items()}
        again = partial(func, *map(self._unheld, args), **unheld)
        if func._schema.is_mutable:
            if not tensors or any(tensor.numel() > 0 for tensor in tensors):
                self._call_again(again)
            return result
        results = result if isinstance(result, list | tuple) else (result,)
        if not all(isinstance(each, torch.Tensor) for each in results):
            raise RuntimeError(f"{func}: must not be used in a graph, its result is not a tensor")
        memories = {_address(tensor) for tensor in tensors}
        if all(each.numel() == 0 or _address(each) in memories for each in results):
            return result
        if len(results) > 1:
            raise RuntimeError(f"{func}: must not be used in a graph, it returns several tensors")
        out = self._memory.empty(result.shape, result.dtype)
        if func not in _EMPTY:
            out.copy_(result)
            into = self._unheld(out)
            self._call_again(lambda: into.copy_(again()))
        return out

    def _unheld(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._unheld(each) for each in value]
        return self._memory.unheld(value) if isinstance(value, torch.Tensor) else value


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
