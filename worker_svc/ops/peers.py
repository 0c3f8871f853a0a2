"""Sums over ranks in memory that their GPUs write and read of each other.

Only in builds with kernels for GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from worker_svc.ops import compiled

if TYPE_CHECKING:
    from worker_svc._C import PeerMemory

PEER_COUNTS = (2, 4, 8)
"""Numbers of ranks that there is a kernel for."""

PEER_TICKET_BYTES = 184
"""Bytes of the ticket by which others open a rank's memory."""


def peer_memory(rank: int, size: int, timeout_s: float) -> PeerMemory:
    """Allocate the memory in which a rank meets the others, on the thread's GPU.

    It is not freed with the object, since another process may have it open: call `free` when none
    has.

    Args:
        rank: in [0, size).
        size: one of PEER_COUNTS.
        timeout_s: how long a kernel waits for other ranks.

    Raises:
        ValueError: there is no kernel for so many ranks.
        RuntimeError: the GPU refuses.
    """
    return compiled._C.PeerMemory(rank, size, timeout_s)


def open_peers(memory: PeerMemory, tickets: Sequence[bytes]) -> str:
    """Open the memory of all ranks.

    Args:
        memory: this rank's.
        tickets: `ticket()` of each rank's memory, in order of rank.

    Returns:
        Why it cannot be opened, "" if it was: a rank is on another machine, or there is no peer
        access to its GPU.
    """
    return memory.open(list(tickets))


def peer_process(ticket: bytes) -> bytes:
    """Return the part of a ticket that names its process."""
    return compiled._C.peer_process(ticket)


def peer_sum(memory: PeerMemory, out: Tensor, x: Tensor) -> None:
    """Add up the tensors of all ranks in float32, as neighbours in a binary tree.

    That is ((x0 + x1) + (x2 + x3)) + ... in one kernel, which graphs may hold, with the same bits
    on every rank. All ranks must call it with the same shape and dtype, in the same order. If one
    does not within the timeout, or after `memory.abandon()`, the result is zeros, and
    `peer_failure` reports it on all ranks: what one computes of zeros reaches the others.

    Args:
        memory: opened by `open_peers`.
        out: as x, not x itself.
        x: contiguous, a multiple of 16 bytes, at most `memory.max_bytes()`.

    Mutates:
        out.
    """
    compiled._C.peer_sum(memory, out, x)


def peer_failure(memory: PeerMemory, out: Tensor) -> None:
    """Copy to `out` whether a sum has failed, on any rank: 1, or 0.

    It has not, if this rank computed with nothing that another made of a failed sum: what a rank
    sends behind its failure arrives behind the report of it.

    Args:
        memory: opened by `open_peers`.
        out: [1] int32.

    Mutates:
        out.
    """
    compiled._C.peer_failure(memory, out)
