"""The step loop: feeds the pure scheduler, drives the workers, tells sessions what came of it."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

from quire.contract.engine_options import PreemptionMode
from quire.contract.errors import (
    DrainingError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)
from quire.contract.outputs import CellState, FinishReason, ModelInfo
from quire.contract.sessions import Queued, Refused, StepOutputs, Submission
from quire.observe.log import get_logger
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.counters import CellAccount
from scheduler_svc.policy.progress import Progress
from scheduler_svc.policy.scheduler import Scheduler
from scheduler_svc.sequences.preemption import PreemptionCounters
from scheduler_svc.sessions.routes import Routes
from scheduler_svc.sessions.session import RouterSession
from scheduler_svc.traces import Traces
from scheduler_svc.workers.formation import Formation
from scheduler_svc.workers.roster import Roster
from scheduler_svc.workers.worker_set import WorkerGroup

REPORT_INTERVAL_S = 0.1
IDLE_REPORT_INTERVAL_S = 1.0
DRAIN_LOOK_INTERVAL_S = 0.02
# Longer than any step, the first ones of a large model on slow cores among them.
STUCK_AFTER_S = 300.0
RETRY_AFTER_MS = 1000
# Outputs of a step for 256 sequences are about 2 KB: some MB for a router that stopped reading.
MAX_UNSENT_EVENTS = 1024

log = get_logger()


class Driver:
    """Owns the scheduler, the worker group and the sessions of a cell.

    Everything runs on one event loop. `submit`, `cancel` and `close_session` are plain calls into
    the pure scheduler, between its steps or while the workers run one.

    Args:
        config: of the cell.
        on_serving: told whether the cell can take steps, whenever that changes.
        on_missing: told which ranks have not announced themselves yet, whenever that changes.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        on_serving: Callable[[bool], Awaitable[None]],
        on_missing: Callable[[tuple[int, ...]], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._on_serving = on_serving
        self._wake = asyncio.Event()
        self._serving = asyncio.Event()
        self._group = WorkerGroup(config, self._wake.set, on_missing)
        self._sessions: set[RouterSession] = set()
        self._routes = Routes()
        # Of the last step, for the sessions.
        self._unsent = Progress()
        self._account = CellAccount(config.block_size)
        self._traces = Traces()
        self._is_formed = False
        self._draining = False
        # When the step loop turned last.
        self._turned = 0.0
        # Set when draining is over.
        self.drained = asyncio.Event()
        # Set by the first formation, before anything can be submitted.
        self._model: ModelInfo
        self._blocks: BlockSpaceManager
        self._scheduler: Scheduler

    # ---------------------------------------------------------------- sessions

    @property
    def model(self) -> ModelInfo:
        """The served model. Known once `wait_serving` has returned."""
        return self._model

    @property
    def state(self) -> CellState:
        """Live state of the cell. Known once `wait_serving` has returned."""
        return self._account.state(self._scheduler, self._blocks, draining=self._draining)

    @property
    def is_formed(self) -> bool:
        """Whether the workers have been ready at least once."""
        return self._is_formed

    @property
    def account(self) -> CellAccount:
        """What the cell has done so far."""
        return self._account

    @property
    def group(self) -> WorkerGroup:
        """The workers."""
        return self._group

    @property
    def preemptions(self) -> PreemptionCounters:
        """What preemption has come to. Known once the cell `is_formed`."""
        return self._scheduler.counters

    @property
    def num_cached_blocks(self) -> int:
        """Free blocks that keep a prefix. Known once the cell `is_formed`."""
        return self._blocks.num_cached_blocks

    @property
    def num_sessions(self) -> int:
        """Routers that are connected."""
        return len(self._sessions)

    @property
    def why_stuck(self) -> str:
        """Why only a new start can help; empty if none is needed.

        Requests of a cell that waits for lost workers are not stuck: they are there again once the
        workers are.
        """
        if not (self._serving.is_set() and self._scheduler.has_unfinished):
            return ""
        stuck_s = time.monotonic() - self._turned
        return f"no step for {stuck_s:.0f} s" if stuck_s > STUCK_AFTER_S else ""

    @property
    def roster(self) -> Roster:
        """Where the workers are."""
        return self._group.roster

    @property
    def block_hashes(self) -> Collection[int]:
        """What can be found in the prefix cache. Known once `wait_serving` has returned."""
        return self._blocks.digest.keys

    async def wait_serving(self) -> None:
        """Return while the workers are ready to run steps."""
        await self._serving.wait()

    def open_session(self) -> RouterSession:
        """Return a new session."""
        session = RouterSession(MAX_UNSENT_EVENTS)
        self._sessions.add(session)
        return session

    def close_session(self, session: RouterSession) -> None:
        """Abort what the session has unfinished and tell it nothing more."""
        self._sessions.discard(session)
        for group_id in list(session.groups.values()):
            self._abort(group_id)

    def submit(self, session: RouterSession, submission: Submission) -> None:
        """Queue a request, or refuse it; the session is told which."""
        number = submission.request_number
        try:
            if number in session.groups:
                raise InvalidRequestError(
                    "request_number", f"must be unique in the session, got {number} again"
                )
            self._check_draining()
            self._check_room()
            self._check_vocabulary("prompt", submission.prompt_token_ids)
            for output in (submission.outputs or {}).values():
                self._check_vocabulary("output_token_ids", output)
            params = submission.sampling_params
            self._check_vocabulary("logit_bias", params.logit_bias)
            self._check_vocabulary("allowed_token_ids", params.allowed_token_ids)
            self._check_vocabulary("stop_token_ids", params.stop_token_ids)
            for token_ids in params.bad_words_token_ids:
                self._check_vocabulary("bad_words_token_ids", token_ids)
            seed = secrets.randbits(64) if params.seed is None else params.seed
            if not self._scheduler.has_unfinished:
                self._turned = time.monotonic()
            seeded = replace(submission, sampling_params=replace(params, seed=seed))
            group_id, progress = self._scheduler.add(seeded, time.monotonic())
        except (InvalidRequestError, OverloadedError, DrainingError) as error:
            self._account.num_refused[error.reason] += 1
            self._traces.refused(submission, error.reason)
            session.push(Refused(number, error))
            return
        self._account.num_queued += 1
        self._traces.queued(group_id, submission)
        self._traces.told(progress)
        session.push(Queued(number, seed))
        self._routes.add(group_id, session, number)
        self._routes.tell(progress)
        self._wake.set()

    def cancel(self, session: RouterSession, request_number: int) -> None:
        """Abort a request; one that has ended meanwhile is nobody's mistake."""
        group_id = session.groups.get(request_number)
        if group_id is not None:
            self._abort(group_id)
            ended = StepOutputs()
            ended.add_finished(request_number, 0, FinishReason.ABORT)
            session.push(ended)

    def cancel_sequence(
        self, session: RouterSession, request_number: int, sequence_index: int
    ) -> None:
        """Abort one sequence of a request; the router, which has ended it, is told nothing."""
        # The others may have ended with the last step: its end would go unheard with the route.
        self._route()
        group_id = session.groups.get(request_number)
        if group_id is None:
            return
        group_time = self._scheduler.abort_sequence(group_id, sequence_index, time.monotonic())
        if group_time is not None:
            self._traces.ended(group_id, group_time, FinishReason.STOP.value)
            self._routes.remove(group_id)

    def _abort(self, group_id: int) -> None:
        """End a request that nobody wants any more."""
        group_time = self._scheduler.abort(group_id, time.monotonic())
        self._traces.ended(group_id, group_time, FinishReason.ABORT.value)
        self._routes.remove(group_id)

    def _check_draining(self) -> None:
        if self._draining:
            raise DrainingError("the cell is draining: it takes no new requests")

    def _check_room(self) -> None:
        if len(self._scheduler.queues.waiting) >= self._config.max_waiting:
            raise OverloadedError(
                f"the waiting queue is full: max_waiting is {self._config.max_waiting}",
                RETRY_AFTER_MS,
            )

    def _check_vocabulary(self, field: str, token_ids: Collection[int]) -> None:
        largest = max(token_ids, default=0)
        if largest >= self._model.vocab_size:
            raise InvalidRequestError(
                field, f"token ids must be in [0, {self._model.vocab_size - 1}], got {largest}"
            )

    # ---------------------------------------------------------------- life

    async def run(self, scheduler_name: str) -> None:
        """Form the group and run steps; form it again whenever it is lost. Runs until cancelled.

        Args:
            scheduler_name: by which workers know who drives them, the same after a new start.

        Raises:
            QuireError: the group cannot be formed and another attempt cannot help, or another
                scheduler has taken the workers over.
        """
        reporter = asyncio.create_task(self._report())
        try:
            self._start(await self._group.form_first(scheduler_name))
            while True:
                await self._set_serving(True)
                await self._step_until_lost()
                await self._set_serving(False)
                self._scheduler.preempt_all(time.monotonic())
                self._traces.steps_lost()
                formation = await self._group.form_again()
                self._blocks.set_num_host_blocks(formation.num_host_blocks)
                self._account.epoch = formation.epoch
        finally:
            reporter.cancel()
            self._group.dissolve()
            await asyncio.gather(reporter, return_exceptions=True)

    async def close(self) -> None:
        """End every session and close the channels; `run` must have ended."""
        for session in list(self._sessions):
            session.end(UnavailableError("the scheduler stops"))
        await self._group.close()

    async def drain(self) -> int:
        """Take nothing new, tell the routers, and finish what there is, as far as time allows.

        Returns:
            How many requests are unfinished in the end. They are with their routers too, which
            continue them on other cells when their sessions end.
        """
        if not self._draining:
            self._draining = True
            log.info("drain_started", num_requests=self._num_unfinished)
            await self._on_serving(False)
            if self._is_formed:
                self._tell_state(self.state)
        deadline = time.monotonic() + self._config.drain_timeout_s
        while self._is_busy and time.monotonic() < deadline:
            await asyncio.sleep(DRAIN_LOOK_INTERVAL_S)
        num_unfinished = self._num_unfinished
        log.info("drain_ended", num_unfinished=num_unfinished)
        self.drained.set()
        return num_unfinished

    @property
    def _num_unfinished(self) -> int:
        return sum(len(session.groups) for session in self._sessions)

    @property
    def _is_busy(self) -> bool:
        """Whether waiting helps: requests go on here, or their routers are yet to be told of them.

        Requests that wait for workers to come back are better off elsewhere.
        """
        if not self._serving.is_set():
            return False
        return self._num_unfinished > 0 or not all(each.is_told for each in self._sessions)

    async def _set_serving(self, serving: bool) -> None:
        if serving:
            self._serving.set()
        else:
            self._serving.clear()
        await self._on_serving(serving and not self._draining)

    def _start(self, formation: Formation) -> None:
        config = self._config
        self._model = formation.model
        self._blocks = BlockSpaceManager(
            config.block_size, formation.num_blocks, config.watermark, formation.num_host_blocks
        )
        self._scheduler = Scheduler(
            self._blocks,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            max_model_len=formation.model.max_model_len,
            eos_token_ids=formation.model.eos_token_ids,
            enable_prefix_caching=config.enable_prefix_caching,
            preemption_mode=PreemptionMode(config.preemption_mode),
            priority_ageing_s=config.priority_ageing_s,
        )
        self._scheduler.preemption_costs.block_us = formation.swap_block_us
        self._is_formed = True
        self._account.epoch = formation.epoch

    # ---------------------------------------------------------------- steps

    async def _step_until_lost(self) -> None:
        try:
            while True:
                self._turned = time.monotonic()
                await self._send_steps()
                # What a step brought is told once the workers have the next one to compute.
                self._route()
                if self._group.num_in_flight:
                    await self._receive_step()
                elif not self._scheduler.has_unfinished:
                    await self._wait_for_work()
        except UnavailableError as error:
            self._route()
            log.warning(
                "workers_lost",
                error=error.message,
                num_running=len(self._scheduler.queues.running),
            )

    async def _send_steps(self) -> None:
        """Schedule and send steps until there are as many in flight as there may be."""
        while self._group.num_in_flight < self._config.max_steps_in_flight:
            started = time.perf_counter()
            outputs = self._scheduler.schedule(time.monotonic())
            self._account.schedule_s += time.perf_counter() - started
            if outputs is None:
                return
            groups = set[int]()
            if self._traces.wants_steps:
                groups = self._scheduler.residency.group_ids_of(outputs)
            outputs.traceparent = self._traces.step_sent(outputs, groups)
            await self._group.send(outputs)

    async def _receive_step(self) -> None:
        executed = await self._group.receive()
        started = time.perf_counter()
        self._unsent = self._scheduler.update(executed.result, time.monotonic())
        self._account.schedule_s += time.perf_counter() - started
        self._traces.step_received(executed)
        self._traces.told(self._unsent)
        self._account.count(executed, len(self._unsent.token_ids))
        self._account.count_ends(self._unsent)
        costs, result = self._scheduler.preemption_costs, executed.result
        costs.observe_step(executed.num_tokens, result.model_us)
        if executed.num_swapped_blocks:
            costs.observe_swap(executed.num_swapped_blocks, result.swap_us)

    async def _wait_for_work(self) -> None:
        """Return when there is something to schedule.

        Raises:
            UnavailableError: a worker ended its stream meanwhile.
        """
        self._scheduler.check_invariants()
        while not self._scheduler.has_unfinished:
            if self._group.is_lost:
                raise UnavailableError("a worker ended its stream while idle")
            self._wake.clear()
            await self._wake.wait()
        self._turned = time.monotonic()

    def _route(self) -> None:
        """Tell the sessions what the last step brought."""
        progress, self._unsent = self._unsent, Progress()
        self._routes.tell(progress)

    # ---------------------------------------------------------------- state

    async def _report(self) -> None:
        """Send the cell's state: within 100 ms of a step, and once a second in any case."""
        await self._serving.wait()
        reported, reported_at = self.state, 0.0
        while True:
            state, now = self.state, time.monotonic()
            if state != reported or now - reported_at >= IDLE_REPORT_INTERVAL_S:
                reported, reported_at = state, now
                self._tell_state(state)
            await asyncio.sleep(REPORT_INTERVAL_S)

    def _tell_state(self, state: CellState) -> None:
        """Tell every router how the cell is, and what its cache holds."""
        delta = self._blocks.digest.take_delta()
        for session in self._sessions:
            if delta.added or delta.removed:
                session.push(delta)
            session.push(state)
