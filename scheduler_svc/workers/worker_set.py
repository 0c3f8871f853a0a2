"""All workers of a cell: formed under an epoch, sent steps, formed again if one is lost."""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from quire.contract.block_shipping import ImportResult
from quire.contract.errors import (
    ProtocolDiffersError,
    QuireError,
    StaleEpochError,
    UnavailableError,
)
from quire.contract.steps import SchedulerOutputs, StepResult
from quire.contract.workers import CachedBlock
from quire.observe.log import get_logger
from quire.wire.worker import execute_request_to_proto
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.workers.client import WorkerClient, WorkerFailedError, answers, on_all
from scheduler_svc.workers.executed_step import ExecutedStep, SentStep
from scheduler_svc.workers.formation import Formation, FormedWorkers
from scheduler_svc.workers.imports import on_ranks
from scheduler_svc.workers.patience import Patience
from scheduler_svc.workers.recorder import Recorder, epoch_header
from scheduler_svc.workers.roster import Roster

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 2.0

log = get_logger()


@dataclass(frozen=True, slots=True)
class Successor:
    """Workers that are formed beside those in use, and may take over from them.

    Attributes:
        config: which workers, and what they have loaded.
        roster: their addresses.
        formation: of them.
        formed: what a cell needs to know of them.
        num_formations: how often the workers in use had been formed before.
    """

    config: SchedulerConfig
    roster: Roster
    formation: Formation
    formed: FormedWorkers
    num_formations: int

    async def close(self) -> None:
        """Release the workers."""
        for worker in self.formation.workers:
            await worker.close()


class WorkerSet:
    """Sends each step to all workers of a cell, under an epoch and a step number.

    Args:
        config: which workers, and what to load into them.
        on_lost: called when a worker ends its Execute stream, also between steps.
        on_missing: called with the ranks that have not announced themselves, whenever they change.

    Attributes:
        roster: the address of each rank.
        recorder: records each step; None if nothing is recorded.
        num_formations: how often the workers have been formed.
        is_lost: whether a worker has ended its stream since then.
        why_unformed: what the last attempt to form them ended with; empty since one has succeeded.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        on_lost: Callable[[], None],
        on_missing: Callable[[tuple[int, ...]], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._on_lost = on_lost
        self._on_missing = on_missing
        self.roster = self._make_roster(config)
        self._patience = Patience()
        # Two schedulers may have one name: a start of it that hangs, and the one that replaced it.
        self._start = secrets.token_hex(8)
        self._formation = Formation(config, self.roster, self._start, self._patience)
        self._formed: FormedWorkers | None = None
        self._step_id = 0
        self._in_flight: deque[SentStep] = deque()
        self._received = 0.0
        # Set, and replaced by a new one, whenever a step is no longer in flight.
        self._changed = asyncio.Event()
        self.recorder: Recorder | None = None
        self.num_formations = 0
        self.why_unformed = ""
        self.is_lost = False

    def _make_roster(self, config: SchedulerConfig) -> Roster:
        return Roster(config, partial(answers, tls=config.tls), self._on_missing)

    @property
    def config(self) -> SchedulerConfig:
        """Which workers there are, and what is loaded into them."""
        return self._config

    @property
    def formed(self) -> FormedWorkers | None:
        """What is known of the workers; None before they are formed for the first time."""
        return self._formed

    # ---------------------------------------------------------------- forming

    async def form_first(self, scheduler_name: str) -> FormedWorkers:
        """Form the workers, waiting for those that are not there yet. Other errors are final.

        Args:
            scheduler_name: by which workers know who drives them.

        Raises:
            QuireError: another attempt cannot help; see Formation.form.
        """
        return await self._form_patiently(
            scheduler_name,
            lambda error: (
                isinstance(error, WorkerFailedError)
                or not isinstance(error, (UnavailableError, ProtocolDiffersError))
            ),
        )

    async def form_again(self, scheduler_name: str) -> FormedWorkers:
        """Form the workers again, however long it takes: requests wait meanwhile.

        Args:
            scheduler_name: as of `form_first`.

        Raises:
            StaleEpochError: another scheduler took the workers over.
        """
        return await self._form_patiently(
            scheduler_name, lambda error: isinstance(error, StaleEpochError)
        )

    async def _form_patiently(
        self, scheduler_name: str, is_final: Callable[[QuireError], bool]
    ) -> FormedWorkers:
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                return await self.form(scheduler_name)
            except QuireError as error:
                if is_final(error):
                    raise
                self.why_unformed = error.message
                is_unavailable = isinstance(error, UnavailableError)
                log.warning(
                    "workers_unavailable" if is_unavailable else "workers_unusable",
                    error=error.message,
                )
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)

    async def form(self, scheduler_name: str) -> FormedWorkers:
        """Form the workers under a new epoch and open the Execute streams.

        Args:
            scheduler_name: by which workers know who drives them.

        Raises:
            QuireError: see Formation.form and Recorder.
        """
        if self._config.record and self.recorder is None:
            self.recorder = Recorder(self._config)
        self.cancel_streams()
        formed = await self._formation.form(scheduler_name)
        self._begin(formed, scheduler_name)
        return formed

    def _begin(self, formed: FormedWorkers, scheduler_name: str) -> None:
        """Open the Execute streams of workers that were formed."""
        self._formed = formed
        self.num_formations += 1
        self.why_unformed = ""
        self._step_id = 0
        self.is_lost = False
        if self.recorder is not None:
            self.recorder.begin(epoch_header(self._config, formed, scheduler_name))
        for worker in self._workers:
            worker.open_stream(self._lost)
        log.info(
            "workers_formed",
            epoch=formed.epoch,
            model=formed.model.name,
            max_model_len=formed.model.max_model_len,
            num_blocks=formed.num_blocks,
            num_host_blocks=formed.num_host_blocks,
        )

    # ---------------------------------------------------------------- other workers

    async def prepare(self, config: SchedulerConfig, scheduler_name: str) -> Successor:
        """Form other workers beside those in use, which run steps meanwhile.

        Args:
            config: which workers, and what to load into them.
            scheduler_name: as of `form_first`.

        Raises:
            QuireError: see Formation.form; they are released.
        """
        assert self._formed is not None, "the workers are formed"
        num_formations, roster = self.num_formations, self._make_roster(config)
        formation = Formation(config, roster, self._start, self._patience, self._formed)
        try:
            formed = await formation.form(scheduler_name)
        except BaseException:
            for worker in formation.workers:
                await worker.close()
            raise
        return Successor(config, roster, formation, formed, num_formations)

    def replace(self, successor: Successor, scheduler_name: str) -> Sequence[WorkerClient]:
        """Go on with other workers. No step may be in flight.

        Args:
            successor: from `prepare`.
            scheduler_name: as of `form_first`.

        Returns:
            Those that were in use, to be closed.

        Raises:
            UnavailableError: one of them, or of those in use, was lost meanwhile; nothing changes.
        """
        assert not self._in_flight, "a step is in flight"
        if self.is_lost or self.num_formations != successor.num_formations:
            raise UnavailableError("workers in use were lost meanwhile; they are formed again")
        for worker in successor.formation.workers:
            worker.check_alive()
        released = self._workers
        self.cancel_streams()
        self._config, self.roster = successor.config, successor.roster
        self._formation = successor.formation
        self._begin(successor.formed, scheduler_name)
        return released

    def cancel_streams(self) -> None:
        """End the Execute streams; what was in flight has no result any more."""
        self._in_flight.clear()
        self._has_changed()
        for worker in self._workers:
            worker.cancel_stream()

    async def close(self) -> None:
        """End the streams, close the channels and write what is to be recorded."""
        for worker in self._workers:
            await worker.close()
        if self.recorder is not None:
            self.recorder.close()

    @property
    def _workers(self) -> list[WorkerClient]:
        return self._formation.workers

    @property
    def reachable(self) -> dict[int, bool]:
        """Whether each rank answered its last call."""
        return dict.fromkeys(range(self._config.num_ranks), False) | {
            worker.rank: worker.is_reachable for worker in self._workers
        }

    def _lost(self) -> None:
        self.is_lost = True
        self._on_lost()

    async def raise_if_lost(self) -> None:
        """Check that no worker has ended its stream, no step being in flight.

        Raises:
            StaleEpochError: another scheduler took the workers over.
            UnavailableError: a worker was lost; they must be formed again.
        """
        if self.is_lost:
            await on_all(self._workers, WorkerClient.raise_end)
            raise UnavailableError("a worker ended its stream while idle")

    # ---------------------------------------------------------------- steps

    async def send(self, outputs: SchedulerOutputs) -> None:
        """Send a step to every worker; it runs after those sent before.

        Mutates: outputs, which gets epoch and number of the step.

        Raises:
            UnavailableError: a worker was lost; they must be formed again.
        """
        assert self._formed is not None, "the workers are formed"
        started = time.perf_counter()
        self._step_id += 1
        outputs.epoch, outputs.step_id = self._formed.epoch, self._step_id
        request = execute_request_to_proto(outputs).SerializeToString()
        self._in_flight.append(
            SentStep(
                self._step_id,
                len(request),
                started,
                sum(outputs.num_scheduled_tokens),
                len(outputs.sequence_ids),
                len(outputs.blocks_to_swap_out) + len(outputs.blocks_to_swap_in),
            )
        )
        if self.recorder is not None:
            self.recorder.record_orders(request)
        await on_all(self._workers, lambda worker: worker.send(request))

    async def receive(self) -> ExecutedStep:
        """Wait until every worker has run the oldest step in flight.

        Raises:
            UnavailableError: a worker was lost; they must be formed again.
            StaleEpochError: another scheduler took the workers over.
        """
        assert self._formed is not None, "the workers are formed"
        epoch, sent = self._formed.epoch, self._in_flight[0]
        results = await on_all(self._workers, WorkerClient.receive)
        # Not before: a step whose result is awaited is in flight.
        self._in_flight.popleft()
        self._has_changed()
        received = time.perf_counter()
        # A step that was sent ahead does not wait for the wire while the one before it runs.
        elapsed_us = round(1e6 * (received - max(sent.started, self._received)))
        self._received = received
        self._patience.ended()
        for worker, result in zip(self._workers, results, strict=True):
            if (result.epoch, result.step_id) != (epoch, sent.step_id):
                raise UnavailableError(
                    f"worker {worker.address} answered step {result.step_id} of epoch "
                    f"{result.epoch}, not step {sent.step_id} of epoch {epoch}"
                )
        self._check_same_tokens(results)
        if self.recorder is not None:
            self.recorder.record_result(results[0])
        return ExecutedStep(
            results[0],
            sent.step_bytes,
            elapsed_us,
            sent.num_tokens + sum(results[0].num_draft_tokens),
            sent.num_sequences,
            sent.num_swapped_blocks,
        )

    def _check_same_tokens(self, results: Sequence[StepResult]) -> None:
        """Check that all ranks go on with the tokens that rank 0 sampled.

        Raises:
            UnavailableError: one was told others, and would compute another text.
        """
        first = results[0]
        for worker, result in zip(self._workers[1:], results[1:], strict=True):
            is_same = (result.sequence_ids, result.token_ids) == (
                first.sequence_ids,
                first.token_ids,
            )
            if result.sequence_ids and not is_same:  # workers of earlier releases report none
                raise UnavailableError(
                    f"worker {worker.address} has other tokens of step {first.step_id} than "
                    f"{self._workers[0].address}, which sampled them"
                )

    async def settled(self) -> None:
        """Return once all steps that were sent so far have run, or the workers are lost."""
        last = self._step_id
        while self._in_flight and self._in_flight[0].step_id <= last:
            changed = self._changed
            await changed.wait()

    def _has_changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the workers, in order of rank."""
        return tuple(worker.address for worker in self._workers)

    async def import_blocks(
        self, source: Sequence[str], blocks: tuple[CachedBlock, ...], limit_ms: int
    ) -> ImportResult:
        """Have each worker fill blocks from the worker of its rank in another cell: `on_ranks`."""
        assert self._formed is not None, "the workers are formed"
        return await on_ranks(self._workers, self._formed.epoch, source, blocks, limit_ms)

    @property
    def num_in_flight(self) -> int:
        """Steps sent whose result has not been received."""
        return len(self._in_flight)
