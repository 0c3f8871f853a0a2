"""The memory of the emulated GPU: what tensors, graphs and kernels' host code hold of it.

A tensor's memory is free again when no tensor of the device refers to it. What is allocated while
a graph is captured comes from the pool of the graph, which keeps what it has had at once for as
long as it has graphs. Host code of kernels allocates by calls of the runtime, which counts all of
it (see runtime_memory.h). Pieces fit wherever there is room, as if addresses did not matter.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from worker_svc.ops import compiled

# As torch rounds what it allocates on a GPU.
_UNIT = 512
UNLIMITED = 2**63


class Pool:
    """Memory of graphs that do not run at the same time.

    Args:
        memory: of the device.

    Attributes:
        in_use: bytes of tensors.
        bytes: that it holds.
        num_graphs: that use it, or are being captured.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self.in_use = 0
        self.bytes = 0
        self.num_graphs = 0

    @contextmanager
    def capturing(self) -> Iterator[Callable[[Any], None]]:
        """Take what this thread allocates in a block; gives a function that keeps it for a graph.

        What tensors do not use goes back with the last graph, or now if none was kept.
        """
        kept: list[Any] = []
        self.num_graphs += 1
        self._memory.thread.pool = self
        try:
            yield kept.append
        finally:
            self._memory.thread.pool = None
            if kept:
                weakref.finalize(kept[0], self._memory.end_graph, self).atexit = False
            else:
                self._memory.end_graph(self)


class _OfThread(threading.local):
    pool: Pool | None = None


class _Piece:
    """Memory of tensors, in a pool or not, and how many refer to it."""

    def __init__(self, num_bytes: int, pool: Pool | None) -> None:
        self.num_bytes = num_bytes
        self.pool = pool
        self.num_tensors = 0


class DeviceMemory:
    """What a device holds now, and has held at most.

    Attributes:
        thread: the pool from which the calling thread allocates; None for none.
    """

    def __init__(self) -> None:
        self.thread = _OfThread()
        self._runtime = _runtime()
        self._lock = threading.RLock()
        self._pieces: dict[int, _Piece] = {}
        # References to tensors, and what no longer is: any thread may find that out, at any time.
        self._tensors: dict[weakref.ref[torch.Tensor], int] = {}
        self._gone: deque[weakref.ref[torch.Tensor] | Pool] = deque()

    def add(self, tensor: torch.Tensor, inner: torch.Tensor) -> None:
        """Count a tensor's memory for as long as the tensor lives.

        Args:
            tensor: of the device.
            inner: what stands for it on the CPU; with a storage that others share where it is a
                view.

        Raises:
            torch.OutOfMemoryError: the device has not so much left.
        """
        storage = inner.untyped_storage()
        if (address := storage.data_ptr()) == 0:
            return
        with self._lock:
            self.collect()
            if (piece := self._pieces.get(address)) is None:
                num_bytes = -(-storage.nbytes() // _UNIT) * _UNIT
                piece = _Piece(num_bytes, self.thread.pool)
                self._take(piece)
                self._pieces[address] = piece
            piece.num_tensors += 1
            self._tensors[weakref.ref(tensor, self._gone.append)] = address

    def end_graph(self, pool: Pool) -> None:
        """Note that a graph of a pool is gone."""
        self._gone.append(pool)

    def collect(self) -> None:
        """Count no longer what is gone."""
        with self._lock:
            while self._gone:
                gone = self._gone.popleft()
                if isinstance(gone, Pool):
                    gone.num_graphs -= 1
                    self._trim(gone)
                    continue
                address = self._tensors.pop(gone)
                piece = self._pieces[address]
                piece.num_tensors -= 1
                if piece.num_tensors == 0:
                    del self._pieces[address]
                    self._give_back(piece)

    @property
    def held(self) -> int:
        """Bytes that are held."""
        self.collect()
        return int(self._runtime.quire_emulated_held_memory())

    def most(self, work: Callable[[], None]) -> int:
        """Return the bytes that are held at most while a function runs."""
        self.collect()
        self._runtime.quire_emulated_forget_most_memory()
        work()
        return int(self._runtime.quire_emulated_most_memory())

    @contextmanager
    def limited(self, num_bytes: int) -> Iterator[None]:
        """Let the device have so many bytes, for a block."""
        self.collect()
        self._runtime.quire_emulated_limit_memory(num_bytes)
        try:
            yield
        finally:
            self._runtime.quire_emulated_limit_memory(UNLIMITED)

    def _take(self, piece: _Piece) -> None:
        pool, num_bytes = piece.pool, piece.num_bytes
        if pool is not None:
            num_bytes = max(0, pool.in_use + piece.num_bytes - pool.bytes)
        if num_bytes > 0 and not self._runtime.quire_emulated_hold_memory(num_bytes):
            raise torch.OutOfMemoryError(
                f"the emulated GPU is out of memory: {num_bytes} bytes beside {self.held}"
            )
        if pool is not None:
            pool.in_use += piece.num_bytes
            pool.bytes += num_bytes

    def _give_back(self, piece: _Piece) -> None:
        if piece.pool is None:
            self._runtime.quire_emulated_release_memory(piece.num_bytes)
            return
        piece.pool.in_use -= piece.num_bytes
        self._trim(piece.pool)

    def _trim(self, pool: Pool) -> None:
        """Let a pool without graphs hold no more than its tensors use."""
        if pool.num_graphs == 0:
            self._runtime.quire_emulated_release_memory(pool.bytes - pool.in_use)
            pool.bytes = pool.in_use


@cache
def memory_of_process() -> DeviceMemory:
    """Return the memory of the emulated GPU, which is one for all tests of a process."""
    return DeviceMemory()


def _runtime() -> ctypes.CDLL:
    """Return the kernels' library, with the calls that count memory."""
    library = ctypes.CDLL(compiled._C.__file__)
    for name in ("hold", "release", "limit"):
        getattr(library, f"quire_emulated_{name}_memory").argtypes = [ctypes.c_uint64]
    library.quire_emulated_hold_memory.restype = ctypes.c_bool
    for name in ("held", "most"):
        getattr(library, f"quire_emulated_{name}_memory").restype = ctypes.c_uint64
    return library
