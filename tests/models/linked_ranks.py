"""Ranks of a tensor-parallel group as threads of one process, without torch.distributed."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch

from worker_svc.parallel.group import ParallelGroup

T = TypeVar("T")

TIMEOUT_S = 60


class Exchange:
    """Where each rank leaves a tensor and takes those of all.

    One rank computes at a time: what they run on may be one emulated device.
    """

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=TIMEOUT_S)
        self.turn = threading.Lock()
        self._parts: list[torch.Tensor] = [torch.empty(0)] * size

    def gather(self, rank: int, part: torch.Tensor) -> list[torch.Tensor]:
        self._parts[rank] = part
        self._wait()
        parts = [each.clone() for each in self._parts]
        self._wait()
        assert len({(each.shape, each.dtype) for each in parts}) == 1
        return parts

    def _wait(self) -> None:
        self.turn.release()
        try:
            self.barrier.wait()
        finally:
            self.turn.acquire()


@dataclass(frozen=True, slots=True)
class ThreadCommunicator:
    """A rank that meets the others in an Exchange."""

    rank: int
    exchange: Exchange

    def all_gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        return self.exchange.gather(self.rank, part)

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        return sum(self.exchange.gather(self.rank, partial), torch.zeros_like(partial))

    def sum_in_order(self, partial: torch.Tensor) -> torch.Tensor | None:
        return None

    def failure(self) -> torch.Tensor | None:
        return None

    def broadcast(self, values: torch.Tensor) -> None:
        values.copy_(self.exchange.gather(self.rank, values)[0])


def run_ranks(size: int, work: Callable[[ParallelGroup], T]) -> list[T]:
    """Return what `work` returns on each rank; all run at once."""
    exchange = Exchange(size)

    def run(rank: int) -> T:
        try:
            with exchange.turn:
                return work(ParallelGroup(rank, size, ThreadCommunicator(rank, exchange)))
        except BaseException:
            exchange.barrier.abort()  # the others would wait for this rank
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
