"""Requests that come from another cell, and wait until their blocks have come, too."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from quire.contract.block_hashes import extend_block_hashes
from quire.contract.errors import UnavailableError
from quire.contract.sessions import Submission
from quire.contract.workers import CachedBlock
from quire.observe.log import failure_of, get_logger
from scheduler_svc.blocks.reserved import give_back, reserve
from scheduler_svc.cell import Cell
from scheduler_svc.config import MoveBlocks, SchedulerConfig
from scheduler_svc.sequences.fetch_times import FetchTimes
from scheduler_svc.sessions.session import RouterSession
from scheduler_svc.workers.client import WorkerFailedError
from scheduler_svc.workers.worker_set import WorkerSet

# Requests whose blocks are fetched at once; more would only share the wire.
MAX_FETCHES = 2
LIMIT_MS = 10_000
# For how long nothing is fetched from where nothing came from.
SHUN_S = 30.0

log = get_logger()


@dataclass(eq=False)
class _Arrival:
    """A request whose blocks are on their way.

    Attributes:
        session: of its router.
        submission: what was submitted.
        hashes: of all its full blocks but what it must compute.
        came_s: when it came, on the monotonic clock.
    """

    session: RouterSession
    submission: Submission
    hashes: list[bytes]
    came_s: float


class Arrivals:
    """Fetches the blocks of requests from where they come, before they are queued.

    A fetched block becomes content of the prefix cache. What does not come is computed: nothing but
    time depends on the fetch.

    Args:
        config: of the cell.
        workers: of the cell.
        submit: queues a request.

    Attributes:
        num_fetched: blocks that have come.
        num_missing: blocks that were to be fetched, and have not come.
        num_recomputed: blocks that were not fetched, since it is cheaper to compute them.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        workers: WorkerSet,
        submit: Callable[[RouterSession, Submission], None],
    ) -> None:
        self._config = config
        self._workers = workers
        self._submit = submit
        self._waiting: dict[tuple[RouterSession, int], _Arrival] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(MAX_FETCHES)
        # Blocks that a worker may still write to, a lost one too.
        self._taken: dict[_Arrival, tuple[CachedBlock, ...]] = {}
        # Until when, by source.
        self._shunned: dict[tuple[str, ...], float] = {}
        self._fetch_times = FetchTimes()
        self.num_fetched = 0
        self.num_missing = 0
        self.num_recomputed = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, cell: Cell, session: RouterSession, submission: Submission) -> bool:
        """Take a request, if its blocks are worth fetching; return whether."""
        key = session, submission.request_number
        if key in self._waiting or not self._may_fetch(cell, submission):
            return False
        hashes = self._hashes(cell, submission)
        num_missing = len(hashes) - len(cell.blocks.find_prefix(hashes))
        if not num_missing:
            return False
        if not self._is_worth_it(cell, num_missing):
            return False
        arrival = _Arrival(session, submission, hashes, time.monotonic())
        self._waiting[key] = arrival
        task = asyncio.create_task(self._bring(cell, arrival))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def cancel(self, session: RouterSession, request_number: int) -> None:
        """Forget a request, if it is here; what is on its way still comes."""
        self._waiting.pop((session, request_number), None)

    def cancel_all(self, session: RouterSession) -> None:
        """Forget all requests of a session."""
        for key in [key for key in self._waiting if key[0] is session]:
            del self._waiting[key]

    def queue_all(self) -> None:
        """Queue all requests at once; what is on its way still comes."""
        arrivals = list(self._waiting.values())
        self._waiting.clear()
        for arrival in arrivals:
            self._queue(arrival)

    def lose_workers(self, cell: Cell) -> None:
        """Queue all requests: the workers are lost or replaced, and all blocks with them.

        Called before workers are formed again, since until then a lost one may write to blocks,
        and before others' cache is taken for theirs.
        """
        for task in self._tasks:
            task.cancel()
        for blocks in self._taken.values():
            give_back(cell.blocks, blocks, 0)
        self._taken.clear()
        # Other workers take other times.
        self._fetch_times = FetchTimes()
        self.queue_all()

    async def close(self) -> None:
        """Fetch nothing more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---------------------------------------------------------------- whether to fetch

    def _may_fetch(self, cell: Cell, submission: Submission) -> bool:
        config, source = self._config, submission.block_source
        return (
            config.enable_prefix_caching
            # What is recorded must be all that is computed.
            and not config.record
            and submission.sampling_params.prompt_logprobs is None
            and bool(submission.outputs)
            and len(source) == self._workers.config.num_ranks
            and source != self._workers.addresses
            and cell.has_workers
            and not cell.is_draining
        )

    def _hashes(self, cell: Cell, submission: Submission) -> list[bytes]:
        """Return the hashes of the full blocks, but what its last token is in, of one sequence."""
        output = next(iter((submission.outputs or {}).values()), ())
        token_ids = [*submission.prompt_token_ids, *output]
        block_size, hashes = cell.blocks.block_size, list[bytes]()
        num_blocks = (len(token_ids) - 1) // block_size
        salt = submission.cache_salt.encode()
        extend_block_hashes(hashes, token_ids, block_size, num_blocks, salt)
        return hashes

    def _is_worth_it(self, cell: Cell, num_blocks: int) -> bool:
        """Return whether to fetch blocks rather than to compute them; those are counted."""
        is_worth_it = self._is_cheaper(cell, num_blocks)
        if not is_worth_it:
            self.num_recomputed += num_blocks
        return is_worth_it

    def _is_cheaper(self, cell: Cell, num_blocks: int) -> bool:
        """Return whether to fetch blocks; until both prices are known they are."""
        if self._config.move_blocks == MoveBlocks.NEVER:
            return False
        token_us = cell.scheduler.preemption_costs.token_us
        fetch_us = self._fetch_times.expected_us(num_blocks, time.monotonic())
        if self._config.move_blocks == MoveBlocks.ALWAYS or not token_us or fetch_us is None:
            return True
        # While one comes, so do others.
        return fetch_us / MAX_FETCHES < num_blocks * cell.blocks.block_size * token_us

    # ---------------------------------------------------------------- fetching

    async def _bring(self, cell: Cell, arrival: _Arrival) -> None:
        try:
            async with self._turns:
                if self._is_wanted(arrival):
                    await self._fetch(cell, arrival)
        except Exception as error:
            # Whatever it was: the request is computed.
            log.warning("blocks_not_fetched", **failure_of(error))
        if self._is_wanted(arrival):
            del self._waiting[arrival.session, arrival.submission.request_number]
            self._queue(arrival)

    def _is_wanted(self, arrival: _Arrival) -> bool:
        key = arrival.session, arrival.submission.request_number
        return self._waiting.get(key) is arrival

    async def _fetch(self, cell: Cell, arrival: _Arrival) -> None:
        hashes, manager = arrival.hashes, cell.blocks
        num_found = len(manager.find_prefix(hashes))
        missing = hashes[num_found:]
        # Of many that come at once, what the first of them took is known by now.
        if not missing or not self._is_worth_it(cell, len(missing)):
            return
        num_kept = int(self._config.watermark * manager.num_blocks)
        # A block of a move that is yet to be ordered may count as free.
        source = arrival.submission.block_source
        has_room = manager.num_free_blocks >= len(missing) + num_kept
        if cell.scheduler.residency.has_moves or not has_room or self._is_shunned(source):
            self.num_missing += len(missing)
            return
        blocks, num_filled, is_over = reserve(manager, missing, num_found + 1), 0, True
        self._taken[arrival] = blocks
        try:
            # Steps that were sent before may write to them once more.
            await self._workers.settled()
            started_s = time.monotonic()
            result = await self._workers.import_blocks(source, blocks, LIMIT_MS)
            num_filled = result.num_blocks
            if num_filled:
                ended_s = time.monotonic()
                self._fetch_times.observe(num_filled, 1e6 * (ended_s - started_s), ended_s)
        except asyncio.CancelledError:
            is_over = False
            raise
        except UnavailableError as error:
            # A worker that answers has ended; one that is lost may go on until it is formed again.
            is_over = isinstance(error, WorkerFailedError)
            raise
        finally:
            # They are not taken any more if the workers were replaced.
            if is_over and arrival in self._taken:
                del self._taken[arrival]
                give_back(manager, blocks, num_filled)
            self.num_fetched += num_filled
            self.num_missing += len(blocks) - num_filled
            # It is not the source's fault that a worker here was lost, or replaced.
            if is_over and not num_filled:
                self._shunned[source] = time.monotonic() + SHUN_S

    def _is_shunned(self, source: tuple[str, ...]) -> bool:
        now = time.monotonic()
        self._shunned = {each: until for each, until in self._shunned.items() if until > now}
        return source in self._shunned

    def _queue(self, arrival: _Arrival) -> None:
        submission = arrival.submission
        if submission.deadline_ms is not None:
            waited_ms = round(1e3 * (time.monotonic() - arrival.came_s))
            submission = replace(submission, deadline_ms=max(0, submission.deadline_ms - waited_ms))
        self._submit(arrival.session, submission)
