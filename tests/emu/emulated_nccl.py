"""NCCL where there is no GPU: its groups exchange the memory of emulated devices over Gloo.

It refuses what NCCL answers with a hang or worse: ranks whose calls differ, tensors elsewhere than
on the device, and the abort of a group whose operations a graph still holds.
"""

import socket
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.emu.emulated_torch import EmulatedTensor, Machine

# What rank 0 leaves in the store for the others, as NCCL does its id.
_ID_KEY = "0"


class Options:
    """Options of a group.

    Attributes:
        _timeout: of everything.
    """

    _timeout = timedelta(seconds=60)


class Done:
    """Work that was done when it was started."""

    def wait(self) -> None:
        """Return at once."""


class _Captured:
    """An operation that a graph holds."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run

    def __call__(self) -> None:
        """Run it again."""
        self._run()


def _own_address() -> str:
    """Return an address at which ranks on other hosts find this one, if it has one."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


class EmulatedNccl:
    """A group of ranks; see torch.distributed.ProcessGroupNCCL."""

    Options = Options

    def __init__(self, store: dist.Store, rank: int, size: int, options: Options) -> None:
        timeout = options._timeout
        if rank == 0:
            host = _own_address()
            meeting = dist.TCPStore(
                host, 0, size, is_master=True, timeout=timeout, wait_for_workers=False
            )
            store.set(_ID_KEY, f"{host}:{meeting.port}")
        else:
            host, _, port = store.get(_ID_KEY).decode().rpartition(":")
            meeting = dist.TCPStore(host, int(port), size, is_master=False, timeout=timeout)
        self._meeting = meeting
        self._rank, self._size, self._timeout = rank, size, timeout
        self._group: Any = None
        self._captured: weakref.WeakSet[_Captured] = weakref.WeakSet()
        self._num_calls = 0

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Meet the others."""
        self._group = dist.ProcessGroupGloo(self._meeting, self._rank, self._size, self._timeout)

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]
    ) -> Done:
        """Fill the outputs with the input of each rank."""
        own, parts = self._memory(inputs[0]), [self._memory(each) for each in outputs[0]]
        return self._start("allgather", own, lambda: self._group.allgather([parts], [own]))

    def allreduce(self, tensors: Sequence[torch.Tensor]) -> Done:
        """Replace a tensor by the sum over ranks."""
        own = self._memory(tensors[0])
        return self._start("allreduce", own, lambda: self._group.allreduce([own]))

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> Done:
        """Replace a tensor by that of rank 0."""
        own = self._memory(tensors[0])
        return self._start("broadcast", own, lambda: self._group.broadcast([own]))

    def abort(self) -> None:
        """End the group; the others' operations fail."""
        if len(self._captured) > 0:
            raise RuntimeError("NCCL: a graph holds operations of the group that is aborted")
        self._group = None

    def _memory(self, tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, EmulatedTensor) or not tensor.is_contiguous():
            raise RuntimeError(f"NCCL: must be given contiguous tensors of a GPU, got {tensor}")
        return tensor.inner

    def _start(self, name: str, own: torch.Tensor, start: Callable[[], Any]) -> Done:
        def run() -> None:
            self._compare(name, own)
            start().wait()

        captured = Machine.current.thread.captured
        if captured is not None:
            operation = _Captured(run)
            self._captured.add(operation)
            captured.append(operation)
        run()
        return Done()

    def _compare(self, name: str, own: torch.Tensor) -> None:
        """Have all ranks show each other what they call: NCCL would wait, or mix it up."""
        if self._group is None:
            raise RuntimeError("NCCL: the group was aborted")
        self._num_calls += 1
        call = f"{self._num_calls} {name} {own.dtype} {list(own.shape)}".ljust(80)
        mine = torch.frombuffer(bytearray(call.encode()), dtype=torch.uint8)
        calls = [torch.empty_like(mine) for _ in range(self._size)]
        self._group.allgather([calls], [mine]).wait()
        texts = [bytes(each.tolist()).decode().strip() for each in calls]
        if len(set(texts)) > 1:
            raise RuntimeError(f"NCCL: ranks must call the same operations, got {texts}")
