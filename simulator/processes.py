"""Shards in processes of their own, so that every core computes."""

import multiprocessing
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, cast

from quire.contract.errors import UnavailableError
from quire.garbage import without_collections
from router.cells.choice import RoutingPolicy
from simulator.config import SimulationConfig
from simulator.messages import IntervalOrders, IntervalResult, IntervalStart, Placed
from simulator.shard import Shard


class Shards(Protocol):
    """All shards of a simulation."""

    num_shards: int

    def place(self, starts: Sequence[IntervalStart]) -> list[list[Placed]]:
        """Let every shard place requests; arguments and results are parallel to the shards."""

    def run(self, orders: Sequence[IntervalOrders]) -> list[IntervalResult]:
        """Let every shard run an interval; arguments and results are parallel to the shards."""

    def finish(self) -> float:
        """Check that no request is left; return the CPU seconds of the other processes.

        Raises:
            AssertionError: a request is left.
        """


@contextmanager
def open_shards(
    config: SimulationConfig, policy: RoutingPolicy, num_processes: int
) -> Iterator[Shards]:
    """Make the shards of a simulation; with one process, the shard runs in this one."""
    num_shards = min(num_processes, config.num_cells)
    if num_shards == 1:
        # There is no garbage, and the search costs a third.
        with without_collections():
            yield _LocalShard(Shard(config, policy, 0, 1))
        return
    shards = _ProcessShards(config, policy, num_shards)
    try:
        yield shards
    finally:
        shards.close()


class _LocalShard:
    """One shard, in this process."""

    num_shards = 1

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def place(self, starts: Sequence[IntervalStart]) -> list[list[Placed]]:
        return [self._shard.place(starts[0])]

    def run(self, orders: Sequence[IntervalOrders]) -> list[IntervalResult]:
        return [self._shard.run(orders[0])]

    def finish(self) -> float:
        self._shard.check_idle()
        return 0.0


class _ProcessShards:
    """Shards in child processes, each on a pipe that carries only tuples of this package."""

    def __init__(self, config: SimulationConfig, policy: RoutingPolicy, num_shards: int) -> None:
        self.num_shards = num_shards
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        context = multiprocessing.get_context("spawn")
        for index in range(num_shards):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve, args=(there, config, policy, index, num_shards), daemon=True
            )
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def place(self, starts: Sequence[IntervalStart]) -> list[list[Placed]]:
        return cast("list[list[Placed]]", self._call("place", starts))

    def run(self, orders: Sequence[IntervalOrders]) -> list[IntervalResult]:
        return cast("list[IntervalResult]", self._call("run", orders))

    def finish(self) -> float:
        return sum(cast("list[float]", self._call("finish", [None] * self.num_shards)))

    def _call(self, method: str, arguments: Sequence[object]) -> list[Any]:
        try:
            for pipe, argument in zip(self._pipes, arguments, strict=True):
                pipe.send((method, argument))
            answers = [pipe.recv() for pipe in self._pipes]
        except (EOFError, OSError) as error:
            raise UnavailableError(f"a process of the simulation ended: {error!r}") from error
        for failure, _ in answers:
            if failure:
                raise AssertionError(f"a process of the simulation failed:\n{failure}")
        return [answer for _, answer in answers]

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(
    pipe: Connection, config: SimulationConfig, policy: RoutingPolicy, index: int, num_shards: int
) -> None:
    """Carry out calls until the other end of the pipe is closed."""
    shard = Shard(config, policy, index, num_shards)
    with without_collections():
        while True:
            try:
                method, argument = pipe.recv()
            except (EOFError, KeyboardInterrupt):
                return
            try:
                match method:
                    case "place":
                        answer: object = shard.place(argument)
                    case "run":
                        answer = shard.run(argument)
                    case "finish":
                        shard.check_idle()
                        answer = time.process_time()
                    case _:
                        raise AssertionError(f"unknown method {method}")
            except Exception:
                pipe.send((traceback.format_exc(), None))
                return
            pipe.send(("", answer))
