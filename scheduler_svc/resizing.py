"""Other workers, of another number, for a cell that goes on serving: `quire resize`."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from quire.contract.errors import ConfigError, InvalidRequestError, UnavailableError
from quire.contract.resizing import ResizePhase, ResizeProgress
from quire.observe.log import get_logger
from scheduler_svc.arrivals import Arrivals
from scheduler_svc.cell import Cell
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.policy.admission import longest_fitting
from scheduler_svc.policy.progress import Progress
from scheduler_svc.sequences.sequence import SequenceGroup
from scheduler_svc.workers.worker_set import Successor, WorkerSet

# How long the wait for the next tokens is watched.
MAX_GAP_S = 60.0

log = get_logger()


class Resizing:
    """Replaces the workers of a cell by others, which load beside them, between two steps.

    Args:
        workers: of the cell.
        arrivals: requests that wait for blocks, which are lost with the workers' cache.
        wake: called when other workers are ready, so that an idle cell takes them.
    """

    def __init__(self, workers: WorkerSet, arrivals: Arrivals, wake: Callable[[], None]) -> None:
        self._workers = workers
        self._arrivals = arrivals
        self._wake = wake
        self._is_under_way = False
        self._taking: asyncio.Task[int] | None = None
        self._why_given_up: UnavailableError | None = None
        self._successor: Successor | None = None
        # Of the successor: how many requests ran when it took over.
        self._taken: asyncio.Future[int] | None = None
        # Groups that had tokens from the workers before and none from these.
        self._awaited: set[int] = set()
        self._has_all = asyncio.Event()
        self._stopped_s = self._gap_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether other workers are ready: no further step may be sent to those in use."""
        return self._successor is not None

    async def run(
        self, cell: Cell, scheduler_name: str, addresses: tuple[str, ...], timeout_s: float
    ) -> AsyncGenerator[ResizeProgress, None]:
        """Have other workers form, and yield how far that is; the step loop calls `switch`.

        Args:
            cell: that goes on with them.
            scheduler_name: by which workers know who drives them.
            addresses: of the other workers, in order of rank.
            timeout_s: until they must be in use.

        Raises:
            QuireError: they cannot take over; those in use go on.
        """
        if self._is_under_way:
            raise ConfigError("resize: must be the only one, got another while one is under way")
        config = successor_config(self._workers.config, addresses)
        self._check_tokens(cell)
        self._is_under_way = True
        try:
            yield ResizeProgress(ResizePhase.LOADING)
            log.info("resize_started", tensor_parallel_size=len(addresses))
            self._why_given_up = None
            self._taking = asyncio.create_task(self._take_over(config, scheduler_name))
            try:
                async with asyncio.timeout(timeout_s):
                    num_moved = await self._taking
            except asyncio.CancelledError:
                if self._why_given_up is None:
                    raise
                raise self._why_given_up from None
            except TimeoutError:
                raise UnavailableError(
                    f"the new workers are not ready within {timeout_s:g} s; those in use go on"
                ) from None
            yield ResizeProgress(ResizePhase.SWITCHED, num_moved)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_all.wait(), MAX_GAP_S)
            gap_s = time.monotonic() - self._stopped_s if self._awaited else self._gap_s
            log.info("resize_ended", num_moved=num_moved, gap_s=round(gap_s, 3))
            yield ResizeProgress(ResizePhase.DONE, num_moved, gap_s)
        finally:
            self._is_under_way = False

    async def _take_over(self, config: SchedulerConfig, scheduler_name: str) -> int:
        successor = await self._workers.prepare(config, scheduler_name)
        self._taken = asyncio.get_running_loop().create_future()
        self._successor = successor
        self._wake()
        try:
            return await self._taken
        finally:
            # Given up, or refused: it is in use otherwise.
            if self._successor is successor or self._taken.cancelled() or self._taken.exception():
                self._successor = None
                await successor.close()

    def give_up(self, error: UnavailableError) -> None:
        """End a resize that is under way, unless its workers have taken over: the cell drains."""
        if self._taking is not None and not self._taking.done():
            self._why_given_up = error
            self._taking.cancel()

    def fail(self, error: UnavailableError) -> None:
        """Give up workers that are ready: those in use were lost."""
        self._successor = None
        if self._taken is not None and not self._taken.done():
            self._taken.set_exception(error)

    async def switch(self, cell: Cell, scheduler_name: str) -> None:
        """Have the workers that are ready take over; no step is in flight. Or they are refused."""
        successor, taken = self._successor, self._taken
        assert successor is not None and taken is not None, "other workers are ready"
        self._successor = None
        if taken.done():
            return  # given up in this very turn: who waits for it closes them
        # Before others are looked at: they must have room for these, too.
        self._arrivals.queue_all()
        running = list(cell.scheduler.queues.running)
        try:
            self._check_tokens(cell)
            check_fits([*running, *cell.scheduler.queues.waiting], successor)
            released = self._workers.replace(successor, scheduler_name)
        except (ConfigError, UnavailableError) as error:
            if not taken.done():
                taken.set_exception(error)
            return
        prefilling = cell.scheduler.queues.prefilling
        self._awaited = {
            group.group_id
            for group in running
            # Beams have all their tokens at their end.
            if group.beam_search is None and group.group_id not in prefilling
        }
        self._has_all.clear()
        self._gap_s = 0.0
        self._arrivals.lose_workers(cell)
        cell.change_workers(successor.formed)
        self._look(cell, ())
        if not taken.done():
            taken.set_result(len(running))
        for worker in released:
            await worker.close()

    def stopped(self) -> None:
        """Record that the workers in use get no further step."""
        self._stopped_s = time.monotonic()

    def observe(self, cell: Cell, progress: Progress) -> None:
        """Look for tokens of requests that wait for their next since the workers changed."""
        if self._awaited:
            self._look(cell, progress.group_ids)

    def _look(self, cell: Cell, group_ids: Iterable[int]) -> None:
        find = cell.scheduler.queues.find
        self._awaited.difference_update(group_ids)
        self._awaited = {each for each in self._awaited if find(each) is not None}
        if not self._awaited:
            self._gap_s = time.monotonic() - self._stopped_s
            self._has_all.set()

    def _check_tokens(self, cell: Cell) -> None:
        formed = self._workers.formed
        assert formed is not None, "a cell has workers"
        if not formed.model.numerics_id and (number := cell.num_unfinished):
            raise ConfigError(
                f"invariant: must be true while requests run, got false and {number} requests: "
                "their tokens would change with the number of ranks"
            )


def successor_config(config: SchedulerConfig, addresses: tuple[str, ...]) -> SchedulerConfig:
    """Return the settings of a cell with other workers.

    Raises:
        InvalidRequestError: the addresses cannot be used.
        ConfigError: workers announce themselves.
    """
    if config.waits_for_announcements:
        raise ConfigError(
            "workers: must be named to this scheduler by address for a resize; they announce "
            "themselves to it"
        )
    if not addresses:
        raise InvalidRequestError("workers", "must be at least 1 address, got 0")
    in_use = sorted({*addresses} & {*config.worker_addresses})
    if in_use:
        raise InvalidRequestError("workers", f"must not be in use, got {', '.join(in_use)}")
    try:
        return replace(config, workers=addresses, tensor_parallel_size=None)
    except ConfigError as error:
        field, _, problem = error.message.partition(": ")
        raise InvalidRequestError(field, problem) from None


def check_fits(groups: Iterable[SequenceGroup], successor: Successor) -> None:
    """Check that what was queued fits into another cache: else it could never be computed again.

    Raises:
        ConfigError: one does not; names its length and the cache's.
    """
    num_blocks, block_size = successor.formed.num_blocks, successor.config.block_size
    for group in groups:
        width = group.sampling_params.width
        limit = longest_fitting(group.num_prompt_tokens, width, num_blocks, block_size)
        if group.max_num_tokens > limit:
            raise ConfigError(
                f"tensor_parallel_size: must leave a cache for {width} x {group.max_num_tokens} "
                f"tokens, which a request may come to, got {num_blocks * block_size} with "
                f"{successor.config.num_ranks}"
            )
