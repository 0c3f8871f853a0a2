"""Small sums over the ranks of one machine, in memory that their GPUs write and read of each other.

A library needs several launches for a sum in a fixed order, and some 20 us for each; a decode step
makes two of them in every layer. Here it is one kernel. What it needs is agreed on when ranks meet;
where a rank cannot have it none has, and NCCL does what it did.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from quire.observe.log import get_logger
from worker_svc import ops
from worker_svc.loading.hf_config import one_line

if TYPE_CHECKING:
    from worker_svc._C import PeerMemory

# "0" leaves all sums to NCCL.
SETTING = "QUIRE_PEER_SUMS"
_ALIGNMENT = 16
_ACCEPTS, _REFUSES = b"\1", b"\0"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

log = get_logger()


class PeerSums:
    """The open memory of a group.

    Args:
        memory: of this rank.
        processes: those of the ranks that have opened it.

    Attributes:
        memory: of this rank.
        processes: as above.
    """

    def __init__(self, memory: "PeerMemory", processes: set[bytes]) -> None:
        self.memory, self.processes = memory, processes
        self._max_bytes = memory.max_bytes()

    def takes(self, partial: torch.Tensor) -> bool:
        """Return whether it is small enough; by shape and dtype, which all ranks have alike."""
        num_bytes = partial.nbytes
        return (
            0 < num_bytes <= self._max_bytes
            and num_bytes % _ALIGNMENT == 0
            and partial.dtype in _DTYPES
        )

    def sum(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the `tree_sum` of the ranks' tensors, in their dtype.

        Args:
            partial: any shape, of a size that it `takes`.
        """
        partial = partial.contiguous()
        if partial.data_ptr() % _ALIGNMENT != 0:
            partial = partial.clone()
        total = torch.empty_like(partial)
        ops.peer_sum(self.memory, total, partial)
        return total

    def failure(self, device: torch.device) -> torch.Tensor:
        """Return [1] int32 on the device: not 0 if a sum that was started before has failed."""
        failed = torch.empty(1, dtype=torch.int32, device=device)
        ops.peer_failure(self.memory, failed)
        return failed


class PeerSumsOfProcess:
    """The memory of one group after the other.

    Memory is freed once all processes that have opened it have shown that they have left: a rank
    that was lost may be frozen, and write what the others no longer wait for. Of a rank that never
    comes back 2 MB stay.
    """

    def __init__(self) -> None:
        self._left: list[PeerSums] = []

    def open(
        self,
        rank: int,
        size: int,
        timeout_s: float,
        exchange: Callable[[bytes], list[bytes]],
    ) -> PeerSums | None:
        """Agree with the other ranks on memory; return None if one of them cannot have it.

        All ranks must call it at the same time, and have left the group before.

        Args:
            rank: in [0, size).
            size: number of ranks.
            timeout_s: how long a sum may wait for another rank.
            exchange: returns the bytes of each rank for those of this one, of one length.
        """
        if size not in ops.PEER_COUNTS:
            log.info("sums_of_ranks", library="nccl", reason=f"there are {size} ranks")
            return None
        memory, ticket, problem = _allocate(rank, size, timeout_s)
        tickets = exchange(ticket)
        present = {ops.peer_process(each) for each in tickets if any(each)}
        self._free_left(present)
        if memory is None:
            exchange(_REFUSES)
        else:
            sums = PeerSums(memory, present)
            try:
                has_all = all(any(each) for each in tickets)
                problem = ops.open_peers(memory, tickets) if has_all else ""
                accepts = has_all and not problem
                if all(each == _ACCEPTS for each in exchange(_ACCEPTS if accepts else _REFUSES)):
                    log.info("sums_of_ranks", library="peer_memory", max_bytes=memory.max_bytes())
                    return sums
            except BaseException:
                self.leave(sums)
                raise
            self.leave(sums)
        log.info("sums_of_ranks", library="nccl", reason=problem or "another rank cannot")
        return None

    def leave(self, sums: PeerSums) -> None:
        """Touch the others' memory no more, and free this rank's when none of them does.

        Once no graph holds a sum, and none waits on the device.
        """
        sums.memory.close()
        self._left.append(sums)

    def _free_left(self, present: set[bytes]) -> None:
        """Free what only processes have opened that have left it: they meet others now."""
        free = [each for each in self._left if each.processes <= present]
        self._left = [each for each in self._left if each not in free]
        for each in free:
            each.memory.free()


def _allocate(rank: int, size: int, timeout_s: float) -> tuple["PeerMemory | None", bytes, str]:
    """Return memory, its ticket and "", or None, zeros and why there is none."""
    no_ticket = bytes(ops.PEER_TICKET_BYTES)
    if os.environ.get(SETTING) == "0":
        return None, no_ticket, f"{SETTING} is 0"
    try:
        memory = ops.peer_memory(rank, size, timeout_s)
    except RuntimeError as error:
        return None, no_ticket, one_line(error)
    try:
        return memory, memory.ticket(), ""
    except RuntimeError as error:
        memory.free()
        return None, no_ticket, one_line(error)
