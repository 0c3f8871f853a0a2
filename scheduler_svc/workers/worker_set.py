"""All workers of a cell: formed under an epoch, sent steps, formed again if one is lost."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from quire.contract.errors import QuireError, StaleEpochError, UnavailableError
from quire.contract.steps import SchedulerOutputs, StepResult
from quire.observe.log import get_logger
from quire.wire.worker import execute_request_to_proto
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.workers.client import WorkerClient, WorkerFailedError, answers, on_all
from scheduler_svc.workers.formation import Formation, FormedWorkers
from scheduler_svc.workers.roster import Roster

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 2.0

log = get_logger()


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """A step that all workers have run.

    Attributes:
        result: of rank 0, which sampled.
        step_bytes: size of the message to one worker.
        elapsed_us: from before serialising the orders, or from reading the result of the step
            before if that was later, to reading the result.
        num_tokens: of its batch, drafts included.
        num_sequences: of its batch.
        num_swapped_blocks: moved beside it, either way.
    """

    result: StepResult
    step_bytes: int
    elapsed_us: int
    num_tokens: int
    num_sequences: int
    num_swapped_blocks: int


@dataclass(frozen=True, slots=True)
class _SentStep:
    """A step in flight: its number, what it moves and computes, when it was about to be sent."""

    step_id: int
    step_bytes: int
    started: float
    num_tokens: int
    num_sequences: int
    num_swapped_blocks: int


class WorkerSet:
    """Sends each step to all workers of a cell, under an epoch and a step number.

    Args:
        config: which workers, and what to load into them.
        on_lost: called when a worker ends its Execute stream, also between steps.
        on_missing: called with the ranks that have not announced themselves, whenever they change.

    Attributes:
        roster: the address of each rank.
        num_formations: how often the workers have been formed.
        is_lost: whether a worker has ended its stream since then.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        on_lost: Callable[[], None],
        on_missing: Callable[[tuple[int, ...]], None] = lambda _: None,
    ) -> None:
        self._on_lost = on_lost
        self._size = config.num_ranks
        self.roster = Roster(config, partial(answers, tls=config.tls), on_missing)
        self._formation = Formation(config, self.roster)
        self._formed: FormedWorkers | None = None
        self._step_id = 0
        self._in_flight: deque[_SentStep] = deque()
        self._received = 0.0
        self.num_formations = 0
        self.is_lost = False

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
                isinstance(error, WorkerFailedError) or not isinstance(error, UnavailableError)
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
            QuireError: see Formation.form.
        """
        self.cancel_streams()
        formed = self._formed = await self._formation.form(scheduler_name)
        self.num_formations += 1
        self._step_id = 0
        self.is_lost = False
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
        return formed

    def cancel_streams(self) -> None:
        """End the Execute streams; what was in flight has no result any more."""
        self._in_flight.clear()
        for worker in self._workers:
            worker.cancel_stream()

    async def close(self) -> None:
        """End the streams and close the channels."""
        for worker in self._workers:
            await worker.close()

    @property
    def _workers(self) -> list[WorkerClient]:
        return self._formation.workers

    @property
    def reachable(self) -> dict[int, bool]:
        """Whether each rank answered its last call."""
        return dict.fromkeys(range(self._size), False) | {
            worker.rank: worker.is_reachable for worker in self._workers
        }

    def _lost(self) -> None:
        self.is_lost = True
        self._on_lost()

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
            _SentStep(
                self._step_id,
                len(request),
                started,
                sum(outputs.num_scheduled_tokens),
                len(outputs.sequence_ids),
                len(outputs.blocks_to_swap_out) + len(outputs.blocks_to_swap_in),
            )
        )
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
        received = time.perf_counter()
        # A step that was sent ahead does not wait for the wire while the one before it runs.
        elapsed_us = round(1e6 * (received - max(sent.started, self._received)))
        self._received = received
        for worker, result in zip(self._workers, results, strict=True):
            if (result.epoch, result.step_id) != (epoch, sent.step_id):
                raise UnavailableError(
                    f"worker {worker.address} answered step {result.step_id} of epoch "
                    f"{result.epoch}, not step {sent.step_id} of epoch {epoch}"
                )
        return ExecutedStep(
            results[0],
            sent.step_bytes,
            elapsed_us,
            sent.num_tokens + sum(results[0].num_draft_tokens),
            sent.num_sequences,
            sent.num_swapped_blocks,
        )

    @property
    def num_in_flight(self) -> int:
        """Steps sent whose result has not been received."""
        return len(self._in_flight)
