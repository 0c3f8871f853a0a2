"""The workers of a cell as one: formed under an epoch, driven in steps, formed again if lost."""

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
from scheduler_svc.workers.client import Rank, WorkerFailedError, answers, on_all
from scheduler_svc.workers.formation import Formation, GroupFormer
from scheduler_svc.workers.roster import Roster

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 2.0

log = get_logger()


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """A step that all ranks have run.

    Attributes:
        result: of rank 0, which sampled.
        step_bytes: size of the message to one worker.
        elapsed_us: from before serialising the orders, or from reading the result of the step
            before if that was later, to reading the result.
        num_tokens: of its batch.
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


class WorkerGroup:
    """Fan-out to every rank, with step numbers and epochs.

    Args:
        config: which workers, and what to load into them.
        on_lost: called when a rank ends its Execute stream, also between steps.
        on_missing: called with the ranks that nobody has announced yet, whenever they change.

    Attributes:
        roster: where the ranks are.
        num_formations: how often the group has been formed.
        is_lost: a rank has ended its stream since the group was formed.
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
        self._former = GroupFormer(config, self.roster)
        self._formation: Formation | None = None
        self._step_id = 0
        self._in_flight: deque[_SentStep] = deque()
        self._received = 0.0
        self.num_formations = 0
        self.is_lost = False

    # ---------------------------------------------------------------- forming

    async def form_first(self, scheduler_name: str) -> Formation:
        """Form the group, waiting for workers that are not there yet. Other errors are final.

        Args:
            scheduler_name: by which workers know who drives them.

        Raises:
            QuireError: another attempt cannot help; see GroupFormer.form.
        """
        self._former.scheduler_name = scheduler_name
        return await self._form_patiently(
            lambda error: (
                isinstance(error, WorkerFailedError) or not isinstance(error, UnavailableError)
            )
        )

    async def form_again(self) -> Formation:
        """Form the group again, however long it takes: requests wait meanwhile.

        Raises:
            StaleEpochError: another scheduler took the workers over.
        """
        return await self._form_patiently(lambda error: isinstance(error, StaleEpochError))

    async def _form_patiently(self, is_final: Callable[[QuireError], bool]) -> Formation:
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                return await self.form()
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

    async def form(self) -> Formation:
        """Form the group under a new epoch and open the Execute streams.

        Raises:
            QuireError: see GroupFormer.form.
        """
        self.dissolve()
        formation = self._formation = await self._former.form()
        self.num_formations += 1
        self._step_id = 0
        self._in_flight.clear()
        self.is_lost = False
        for rank in self._ranks:
            rank.open_stream(self._lost)
        log.info(
            "group_formed",
            epoch=formation.epoch,
            model=formation.model.name,
            max_model_len=formation.model.max_model_len,
            num_blocks=formation.num_blocks,
            num_host_blocks=formation.num_host_blocks,
        )
        return formation

    def dissolve(self) -> None:
        """End the Execute streams."""
        for rank in self._ranks:
            rank.cancel_stream()

    async def close(self) -> None:
        """End the streams and close the channels."""
        for rank in self._ranks:
            await rank.close()

    @property
    def _ranks(self) -> list[Rank]:
        return self._former.ranks

    @property
    def reachable(self) -> dict[int, bool]:
        """Whether each rank answered when it was last asked for anything."""
        return dict.fromkeys(range(self._size), False) | {
            rank.rank: rank.is_reachable for rank in self._ranks
        }

    def _lost(self) -> None:
        self.is_lost = True
        self._on_lost()

    # ---------------------------------------------------------------- steps

    async def send(self, outputs: SchedulerOutputs) -> None:
        """Send a step to every rank; it runs after those sent before.

        Mutates: outputs, which gets epoch and number of the step.

        Raises:
            UnavailableError: a rank was lost; the group must be formed again.
        """
        assert self._formation is not None, "the group is formed"
        started = time.perf_counter()
        self._step_id += 1
        outputs.epoch, outputs.step_id = self._formation.epoch, self._step_id
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
        await on_all(self._ranks, lambda rank: rank.send(request))

    async def receive(self) -> ExecutedStep:
        """Wait until every rank has run the oldest step in flight.

        Raises:
            UnavailableError: a rank was lost; the group must be formed again.
            StaleEpochError: another scheduler took the workers over.
        """
        assert self._formation is not None, "the group is formed"
        epoch, sent = self._formation.epoch, self._in_flight.popleft()
        results = await on_all(self._ranks, Rank.receive)
        received = time.perf_counter()
        # A step that was sent ahead does not wait for the wire while the one before it runs.
        elapsed_us = round(1e6 * (received - max(sent.started, self._received)))
        self._received = received
        for rank, result in zip(self._ranks, results, strict=True):
            if (result.epoch, result.step_id) != (epoch, sent.step_id):
                raise UnavailableError(
                    f"worker {rank.address} answered step {result.step_id} of epoch "
                    f"{result.epoch}, not step {sent.step_id} of epoch {epoch}"
                )
        return ExecutedStep(
            results[0],
            sent.step_bytes,
            elapsed_us,
            sent.num_tokens,
            sent.num_sequences,
            sent.num_swapped_blocks,
        )

    @property
    def num_in_flight(self) -> int:
        """Steps sent whose result has not been received."""
        return len(self._in_flight)
