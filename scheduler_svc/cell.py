"""What a scheduler serves once its workers are formed: the model, its requests, its blocks."""

import random
import time
from collections.abc import Collection, Iterable
from dataclasses import replace

from quire.contract.engine_options import PreemptionMode, SpeculationMode
from quire.contract.errors import (
    DeadlineExceededError,
    DrainingError,
    InvalidRequestError,
    OverloadedError,
    QuarantinedError,
)
from quire.contract.outputs import CellState, FinishReason
from quire.contract.sessions import Queued, Refused, StepOutputs, Submission, Suspected
from quire.contract.steps import SchedulerOutputs
from quire.observe.log import get_logger
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.counters import Counters
from scheduler_svc.deadlines import EXPIRED, Deadlines
from scheduler_svc.policy.admission import check_model, check_queue, draw_seed
from scheduler_svc.policy.outstanding import outstanding_tokens
from scheduler_svc.policy.progress import Progress
from scheduler_svc.policy.quotas import QuotaKeeper
from scheduler_svc.policy.scheduler import Scheduler
from scheduler_svc.policy.trials import QUARANTINED
from scheduler_svc.sessions.routes import Routes
from scheduler_svc.sessions.session import RouterSession
from scheduler_svc.traces import Traces
from scheduler_svc.workers.adoption import CacheContents
from scheduler_svc.workers.executed_step import ExecutedStep
from scheduler_svc.workers.formation import FormedWorkers

log = get_logger()


class Cell:
    """A scheduler, its counters and the way back from its groups to the routers' sessions.

    No method waits, so that all may be called between steps and while the workers run one.

    Args:
        config: of the cell.
        formed: the workers, as formed the first time.
        is_draining: whether the cell refuses new requests.

    Attributes:
        model: the served model.
        epoch: of the workers.
        is_draining: whether the cell refuses new requests.
        is_moving: whether routers are to move what it has to other cells.
        num_moved: requests that they have withdrawn since.
        has_workers: whether the workers can run steps.
        blocks: of the workers' cache.
        scheduler: decides what each step computes.
        counters: what the cell has done so far.
        deadlines: predicts times to the first token, and refuses what would be late.
        quotas: what API keys have left here.
    """

    def __init__(self, config: SchedulerConfig, formed: FormedWorkers, is_draining: bool) -> None:
        self.model = formed.model
        self.epoch = formed.epoch
        self.is_draining = is_draining
        self.is_moving = False
        self.num_moved = 0
        self.has_workers = True
        self.blocks = BlockSpaceManager(
            config.block_size, formed.num_blocks, config.watermark, formed.num_host_blocks
        )
        speculates = config.speculation != SpeculationMode.OFF and formed.is_invariant
        self.scheduler = Scheduler(
            self.blocks,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            max_model_len=formed.model.max_model_len,
            eos_token_ids=formed.model.eos_token_ids,
            enable_prefix_caching=config.enable_prefix_caching,
            preemption_mode=PreemptionMode(config.preemption_mode),
            priority_ageing_s=config.priority_ageing_s,
            max_draft_tokens=config.max_draft_tokens if speculates else 0,
        )
        self.scheduler.speculation.has_draft_model = bool(config.draft_model)
        self.scheduler.preemption_costs.block_us = formed.swap_block_us
        self._kv_cache_bytes = formed.cache_bytes
        self.counters = Counters()
        self.deadlines = Deadlines(config, self.scheduler.queues)
        self.quotas = QuotaKeeper(self.scheduler.queues)
        self._max_num_seqs = config.max_num_seqs
        self._max_waiting = config.max_waiting
        self._max_waiting_tokens = config.max_waiting_tokens
        self._seeds = random.SystemRandom() if config.seed is None else random.Random(config.seed)
        self._traces = Traces()
        self._routes = Routes()
        # What the last step brought and no session has been sent yet.
        self._unsent = Progress()
        self._adopt(formed.contents)

    # ---------------------------------------------------------------- requests

    def submit(self, session: RouterSession, submission: Submission) -> None:
        """Queue a request, or refuse it, and send the session the event of it."""
        params = submission.sampling_params
        seed, now = draw_seed(params, self._seeds), time.monotonic()
        wait_ms = submission.deadline_ms
        try:
            self._check(session, submission)
            self.quotas.check(submission, now)
            predicted_s = self.deadlines.check(submission, now)
            seeded = replace(submission, sampling_params=replace(params, seed=seed))
            group_id, progress = self.scheduler.add(seeded, now)
        except (
            InvalidRequestError,
            OverloadedError,
            DrainingError,
            DeadlineExceededError,
        ) as error:
            self.counters.num_refused[error.reason] += 1
            self._traces.record_refused(submission, error.reason)
            session.push(Refused(submission.request_number, error))
            return
        self.quotas.admitted(submission, now)
        self.counters.num_queued += 1
        self._traces.record_queued(group_id, submission)
        self._traces.record_progress(progress)
        session.push(Queued(submission.request_number, seed))
        deadline_s = None if wait_ms is None else now + 1e-3 * wait_ms
        self._routes.add(group_id, session, submission.request_number, deadline_s)
        # Nothing was predicted of what begins with more than its prompt.
        if not (progress.ended_group_ids or submission.was_queued or submission.outputs):
            self.deadlines.expect(group_id, predicted_s)
        self._routes.send(progress)

    def _check(self, session: RouterSession, submission: Submission) -> None:
        """Check a request, all but the limits that the scheduler knows.

        Raises:
            InvalidRequestError: its number is taken, or it asks for what the model has not.
            DrainingError: the cell refuses new requests.
            OverloadedError: the queue is full.
        """
        session.check_number(submission.request_number)
        if self.is_draining:
            raise DrainingError("the cell is draining: it takes no new requests")
        check_queue(
            self.scheduler.queues.waiting,
            len(submission.prompt_token_ids),
            self._max_waiting,
            self._max_waiting_tokens,
        )
        check_model(submission, self.model)

    def cancel(self, session: RouterSession, request_numbers: Iterable[int]) -> None:
        """Abort requests and send the session their ends; no effect on those that have ended."""
        ended = StepOutputs()  # one for all: messages that a router has not read are counted
        for number in request_numbers:
            group_id = session.groups.get(number)
            if group_id is not None:
                self._abort(group_id)
                self.num_moved += self.is_moving
                ended.add_finished(number, 0, FinishReason.ABORT)
        if ended.finished_request_numbers:
            session.push(ended)

    def cancel_sequence(
        self, session: RouterSession, request_number: int, sequence_index: int
    ) -> None:
        """Abort one sequence of a request. Nothing is sent: the router has ended it itself."""
        # The others may have ended with the last step, which could not be sent without the route.
        self.send_outputs()
        group_id = session.groups.get(request_number)
        if group_id is None:
            return
        group_time = self.scheduler.abort_sequence(group_id, sequence_index, time.monotonic())
        if group_time is not None:
            self._traces.record_end(group_id, group_time, FinishReason.STOP.value)
            self._routes.remove(group_id)
            self.deadlines.forget(group_id)

    def abort_all(self, session: RouterSession) -> None:
        """Abort all requests of a session; nothing is sent."""
        for group_id in list(session.groups.values()):
            self._abort(group_id)

    def _abort(self, group_id: int) -> None:
        group_time = self.scheduler.abort(group_id, time.monotonic())
        self._traces.record_end(group_id, group_time, FinishReason.ABORT.value)
        self._routes.remove(group_id)
        self.deadlines.forget(group_id)

    def _expire(self) -> None:
        """Abort the requests whose deadline has passed, so that they cost no further step."""
        expired = self._routes.take_expired(time.monotonic())
        if expired:
            # Their last tokens come before the refusal, and may be all that they wanted.
            self.send_outputs()
        for group_id, session, request_number in expired:
            if session.groups.get(request_number) != group_id:
                continue
            self._abort(group_id)
            self.counters.num_expired += 1
            session.push(Refused(request_number, DeadlineExceededError(EXPIRED)))

    # ---------------------------------------------------------------- steps

    def schedule(self) -> SchedulerOutputs | None:
        """Return the orders of the next step, or None if nothing can be computed now."""
        self._expire()
        started, now = time.perf_counter(), time.monotonic()
        self.quotas.settle(now)
        outputs = self.scheduler.schedule(now)
        self.counters.schedule_s += time.perf_counter() - started
        if outputs is not None:
            groups = set[int]()
            if self._traces.wants_steps:
                groups = self.scheduler.residency.group_ids_of(outputs)
            outputs.traceparent = self._traces.start_step(outputs, groups)
        return outputs

    def update(self, executed: ExecutedStep) -> Progress:
        """Take the result of the oldest step in flight; `send_outputs` sends what it brought."""
        started = time.perf_counter()
        progress = self._unsent = self.scheduler.update(executed.result, time.monotonic())
        self.counters.schedule_s += time.perf_counter() - started
        self._traces.end_step(executed)
        self._traces.record_progress(progress)
        self.counters.count_step(executed, len(progress.token_ids))
        self.counters.count_ends(progress)
        self.deadlines.observe(executed, progress, time.monotonic())
        costs, result = self.scheduler.preemption_costs, executed.result
        costs.observe_step(executed.num_tokens, result.model_us)
        speculation, num_drafted = self.scheduler.speculation, result.num_draft_tokens
        # A step whose sequences were only read by the draft model says nothing of what drafts take.
        if not (speculation.has_draft_model and num_drafted and not any(num_drafted)):
            speculation.observe_step(
                executed.num_tokens, executed.elapsed_us, has_slots=bool(num_drafted)
            )
        if executed.num_swapped_blocks:
            costs.observe_swap(executed.num_swapped_blocks, result.swap_us)
        return progress

    def send_outputs(self) -> None:
        """Send the sessions what the last step brought."""
        progress, self._unsent = self._unsent, Progress()
        self._routes.send(progress)

    # ---------------------------------------------------------------- workers

    def lose_workers(self, has_failed: bool) -> None:
        """Queue all requests again, since the workers have lost what they held.

        Routers are sent which of them may be the cause; one that must be fails.

        Args:
            has_failed: whether a worker reported that it failed; else one is gone, or silent.
        """
        self.has_workers = False
        verdict = self.scheduler.preempt_all(time.monotonic(), has_failed)
        self._traces.fail_steps()
        for group in verdict.suspects:
            session, number = self._routes.find(group.group_id)
            session.push(Suspected(number, group.suspect_until, group.num_lost_alone))
        if (guilty := verdict.guilty) is not None:
            session, number = self._routes.find(guilty.group_id)
            self._traces.log_quarantined(guilty.group_id)
            self._abort(guilty.group_id)
            self.counters.num_refused[QuarantinedError.reason] += 1
            session.push(Refused(number, QuarantinedError(QUARANTINED)))

    def take_workers(self, formed: FormedWorkers) -> None:
        """Go on with workers that are formed again; they may give vectors, or none any more."""
        self.model = formed.model
        self.blocks.set_num_host_blocks(formed.num_host_blocks)
        self._kv_cache_bytes = formed.cache_bytes
        self.epoch = formed.epoch
        self.has_workers = True
        self._adopt(formed.contents)

    def change_workers(self, formed: FormedWorkers) -> None:
        """Go on with other workers, which compute again what was in the cache of those before.

        Accuses no request: no step may be in flight, and what the last one brought must be sent.
        """
        self.scheduler.preempt_all(time.monotonic())
        self.blocks.set_num_blocks(formed.num_blocks)
        self.scheduler.preemption_costs.block_us = formed.swap_block_us
        self.take_workers(formed)

    def _adopt(self, contents: CacheContents) -> None:
        """Let what the workers' caches hold from before be found as prefixes."""
        self.scheduler.residency.adopt(contents.blocks, contents.host_blocks)
        num_adopted = self.blocks.num_cached_blocks
        self.counters.num_blocks_offered += contents.num_offered
        self.counters.num_blocks_adopted += num_adopted
        if contents.num_offered:
            log.info("cache_adopted", adopted=num_adopted, offered=contents.num_offered)

    # ---------------------------------------------------------------- state

    @property
    def num_unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self._routes)

    @property
    def state(self) -> CellState:
        """What routers are sent about the cell, as it is now."""
        scheduler, blocks, counters = self.scheduler, self.blocks, self.counters
        preemption, prefix_cache = scheduler.counters, scheduler.prefix_cache
        drafts = scheduler.speculation.counters
        return CellState(
            epoch=self.epoch,
            num_waiting=len(scheduler.queues.waiting),
            num_running=len(scheduler.queues.running),
            num_swapped=len(scheduler.residency.swapped_groups),
            outstanding_tokens=outstanding_tokens(scheduler.queues, prefix_cache),
            draining=self.is_draining,
            workers_lost=not self.has_workers,
            moving=self.is_moving,
            max_num_seqs=self._max_num_seqs,
            block_size=blocks.block_size,
            num_blocks=blocks.num_blocks,
            num_free_blocks=blocks.num_free_blocks,
            kv_cache_bytes=self._kv_cache_bytes,
            num_blocks_saved=blocks.num_blocks_saved,
            num_idle_slots=scheduler.residency.num_idle_slots,
            num_host_blocks=blocks.num_host_blocks,
            num_free_host_blocks=blocks.num_free_host_blocks,
            steps_total=counters.num_steps,
            tokens_total=counters.num_tokens,
            step_bytes_total=counters.step_bytes,
            schedule_us_total=round(1e6 * counters.schedule_s),
            wire_us_total=counters.wire_us,
            model_us_total=counters.model_us,
            sample_us_total=counters.sample_us,
            swap_us_total=counters.swap_us,
            preemptions_total=preemption.preemptions,
            swapped_out_blocks_total=preemption.swapped_out_blocks,
            swapped_in_blocks_total=preemption.swapped_in_blocks,
            recomputed_tokens_total=preemption.recomputed_tokens,
            prefix_cache_queries_total=prefix_cache.num_tokens_looked_up,
            prefix_cache_hits_total=prefix_cache.num_tokens_found,
            draft_tokens_total=drafts.draft_tokens,
            accepted_draft_tokens_total=drafts.accepted_tokens,
        )

    @property
    def block_hashes(self) -> Collection[int]:
        """Short hashes of the blocks that can be found in the prefix cache."""
        return self.blocks.digest.keys
