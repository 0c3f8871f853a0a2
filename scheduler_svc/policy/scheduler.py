"""The pure scheduler: decides what every step computes. No clock, no I/O, no logging."""

from collections.abc import Collection

from quire.contract.engine_options import PreemptionMode
from quire.contract.outputs import FinishReason
from quire.contract.sessions import Submission
from quire.contract.steps import SchedulerOutputs, StepResult
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.blocks.prefix_cache import PrefixCache
from scheduler_svc.blocks.residency import Residency
from scheduler_svc.policy.admission import Admission
from scheduler_svc.policy.beam_forks import BeamForks
from scheduler_svc.policy.draft_slots import DraftSlots
from scheduler_svc.policy.ends import Ends
from scheduler_svc.policy.preemptor import Preemptor
from scheduler_svc.policy.progress import GroupTime, Progress
from scheduler_svc.policy.queues import Queues
from scheduler_svc.policy.step_builder import StepBuilder, wait_reason
from scheduler_svc.policy.time_ledger import WaitReason
from scheduler_svc.policy.trials import Trials, Verdict
from scheduler_svc.sequences.preemption import PreemptionCosts, PreemptionCounters
from scheduler_svc.sequences.sequence import SequenceGroup, SequenceStatus


class Scheduler:
    """Continuous batching of sequence groups, in a fair order, with preemption.

    A step takes at most `max_num_batched_tokens` tokens of at most `max_num_seqs` sequences:

    1. Running groups go on, in order. When blocks run out, the last group in order is preempted:
       its blocks are moved to the host's memory, or freed to be computed again.
    2. If nothing was preempted, waiting groups are started or resumed, in order, while budget and
       blocks last. A prompt longer than the budget is computed in chunks.

    The order is that of arrival, where each level of priority counts as `priority_ageing_s` later.
    So a group is overtaken only by groups that arrive within that time, the first group in order
    always advances, and none starves. Which of several tenants is next, `policy.tenants` decides.

    A step may be scheduled while the one before it is still in flight, so that the workers need not
    wait: sequences go on with a token whose id is not known here yet. If that token turns out to
    end a sequence, its part in the step ahead is void; if the sequence was preempted meanwhile, the
    token is dropped and sampled again, to the same id. Beams wait, since what they compute next
    depends on each other.

    A sequence may get slots for drafts, which the workers guess and compute with its last token: so
    a step brings it one token or several, to the same ids. Nothing is scheduled ahead of the result
    of such a step, since how far it gets is not known.

    A group of several sequences computes its prompt once, as the first of them; the others are
    forked from it as soon as its computation is scheduled, and share its blocks.

    A group that asks for a vector ends with the step that computes the last token of its prompt;
    nothing of it is pending meanwhile.

    Args:
        block_manager: of the workers' cache.
        max_num_batched_tokens: tokens of one step, over all sequences.
        max_num_seqs: sequences that run at once.
        max_model_len: tokens, prompt and output, of one sequence.
        eos_token_ids: end-of-text ids of the model.
        enable_prefix_caching: let sequences share the blocks of a prefix that was computed before.
        preemption_mode: what becomes of a preempted group's blocks.
        priority_ageing_s: how much later each level of priority counts as come, in seconds.
        max_draft_tokens: the most slots for drafts of a sequence in a step; 0 for no speculation.

    Attributes:
        queues: the groups that wait and run; only to be read.
        residency: which sequences hold blocks; only to be read.
        prefix_cache: what was found in it so far.
        preemption_costs: the caller reports there what steps and moves have cost.
        counters: what preemption has come to so far.
        speculation: decides about slots for drafts; the caller reports there what steps have taken.
    """

    def __init__(
        self,
        block_manager: BlockSpaceManager,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        eos_token_ids: Collection[int],
        enable_prefix_caching: bool,
        preemption_mode: PreemptionMode = PreemptionMode.AUTO,
        priority_ageing_s: float = 60.0,
        max_draft_tokens: int = 0,
    ) -> None:
        self._blocks = block_manager
        self._max_num_seqs = max_num_seqs
        self._admission = Admission(
            block_manager,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            eos_token_ids=eos_token_ids,
            priority_ageing_s=priority_ageing_s,
        )
        self.queues = Queues()
        self._trials = Trials(self.queues)
        # Of groups that have begun since the last result: tokens that the cache had.
        self._prefix_hits: list[tuple[int, int]] = []
        self.prefix_cache = PrefixCache(block_manager, enable_prefix_caching)
        self.preemption_costs = PreemptionCosts()
        self.counters = PreemptionCounters()
        self.residency = Residency(block_manager, self.prefix_cache, self.counters)
        self._preemptor = Preemptor(
            block_manager,
            self.queues,
            self.residency,
            preemption_mode,
            self.preemption_costs,
            self.counters,
        )
        self._draft_slots = DraftSlots(
            block_manager, self.queues, max_num_batched_tokens, max_num_seqs, max_draft_tokens
        )
        self.speculation = self._draft_slots.speculation
        self._ends = Ends(self.queues, self.residency, self.speculation)
        self._beam_forks = BeamForks(self.queues, self.residency, self._admission.next_sequence_id)

    @property
    def has_unfinished(self) -> bool:
        """Whether there is anything to schedule."""
        return bool(self.queues)

    # ------------------------------------------------------------------ steps

    def schedule(self, now: float = 0.0) -> SchedulerOutputs | None:
        """Return the orders of the next step, or None if nothing can be computed now.

        At most one step may be in flight: scheduled, and its result not given to `update`. None
        then means that what comes next depends on it; else, that nothing is unfinished, or that
        the groups that ran had to give up their blocks, and the next call schedules something.

        Args:
            now: seconds, on the clock of `add`. It decides nothing; the times of groups go by it.
        """
        self.queues.advance(now)
        if self._draft_slots.in_flight or self._trials.must_wait:
            return None
        step = self._draft_slots.begin_step()
        outputs = step.outputs
        if self._trials.take_turn():
            self._schedule_suspect(step)
        if not outputs.sequence_ids:
            self._schedule_others(step)
        self._trials.scheduled(outputs)
        if not outputs.sequence_ids:
            return None
        outputs.chosen_tokens = self._beam_forks.take_chosen_tokens()
        outputs.num_draft_slots = step.num_draft_slots()
        self._draft_slots.in_flight = step.draft_slots
        self.residency.move_orders_to(outputs)
        return outputs

    def update(self, result: StepResult, now: float = 0.0) -> Progress:
        """Take what the workers sampled: extend sequences and end those that are complete.

        Args:
            result: of the oldest step in flight.
            now: as of `schedule`.
        """
        self.queues.advance(now)
        progress, groups, prefilling = Progress(), self.residency.groups, self.queues.prefilling
        progress.cached_tokens, self._prefix_hits = self._prefix_hits, []
        for sequence_id, prompt_logprobs in result.prompt_logprobs:  # sequences may end below
            if (group := self.residency.find(sequence_id)) is not None:
                progress.prompt_logprobs.append((group.group_id, prompt_logprobs))
        self._draft_slots.observe(result, groups)
        last_id = None
        group_ids, indices = progress.group_ids, progress.sequence_indices
        tokens = zip(result.sequence_ids, result.token_ids, strict=True)
        for index, (sequence_id, token_id) in enumerate(tokens):
            group = groups.get(sequence_id)
            if group is None:
                continue  # aborted, preempted or found complete while the step ran
            sequence = group.sequences[sequence_id]
            if sequence_id == last_id:
                sequence.num_computed_tokens += 1  # the token before, which was drafted
            else:
                sequence.num_pending_tokens -= 1
                last_id = sequence_id
            if prefilling and group.group_id in prefilling:
                if not sequence.samples:  # of workers of a release that knows no vectors
                    self._ends.fail_group(group, progress)
                    continue
                self.queues.start_decode(group)
            if group.beam_search is not None:
                has_all = group.beam_search.report(sequence_id, result.logprobs[index])
                if has_all and not self._beam_forks.advance(group):
                    progress.hypotheses.append((group.group_id, group.beam_search.hypotheses()))
                    self._ends.end_group(group, progress)
                continue
            sequence.token_ids.append(token_id)
            group_ids.append(group.group_id)
            indices.append(sequence.sequence_index)
            progress.token_ids.append(token_id)
            if result.logprobs:
                progress.logprobs.append(result.logprobs[index])
            reason = group.finish_reason(sequence)
            if reason is not None:
                self._ends.finish_sequence(group, sequence, reason, progress)
        for sequence_id, vector in result.vectors:
            if (group := groups.get(sequence_id)) is not None:
                self._ends.finish_with_vector(group, vector, progress)
        for sequence_id in result.failed_sequence_ids:
            if (group := groups.get(sequence_id)) is not None:
                is_barred = sequence_id in result.barred_sequence_ids
                reason = FinishReason.NO_TOKEN if is_barred else FinishReason.ERROR
                self._ends.fail_group(group, progress, reason)
        self._trials.completed()
        self.queues.report_times(progress)
        return progress

    # ------------------------------------------------------------------ policy

    def _schedule_suspect(self, step: StepBuilder) -> None:
        if (group := self._trials.group) is not None:
            self._schedule_group(group, step)
        else:
            self._start_waiting(step, only_first=True)

    def _schedule_others(self, step: StepBuilder) -> None:
        self.queues.waiting.settle(self.queues.running)  # before anything asks who is first
        has_yielded = self._preemptor.yield_to_first_waiting(self._find_place)
        self._schedule_running(step)
        if not step.has_preempted:
            self._start_waiting(step, only_first=has_yielded)
        self.queues.wait_for(wait_reason(self.queues, step, has_yielded, self._max_num_seqs))

    def _schedule_running(self, step: StepBuilder) -> None:
        running, suspect = self.queues.running, self._trials.group
        for group in [each for each in running if each is not suspect]:
            # A group missing here was preempted for an earlier one, as was every group after it.
            if not step.token_budget or (step.has_preempted and group.group_id not in running):
                return
            if not step.add_decoding(group, self._blocks.block_size):
                self._schedule_group(group, step)

    def _start_waiting(self, step: StepBuilder, only_first: bool) -> None:
        waiting = self.queues.waiting
        while waiting and step.token_budget:
            group = waiting.first
            prefix = self._find_place(group)
            self._draft_slots.nothing_starts = prefix is None
            if prefix is None or not self._trials.may_start(group, step.outputs):
                return
            if not self._draft_slots.leave_room_for(group, step):
                return
            self.queues.start(group)
            self.residency.start(group, prefix)
            if prefix and not group.is_charged:  # at its first start, here or elsewhere
                self._prefix_hits.append((group.group_id, len(prefix) * self._blocks.block_size))
            waiting.charge_start(group)
            self._schedule_group(group, step)
            if only_first or group.suspect_until:
                return  # those preempted for it may have a token in flight, still to be dropped

    def _find_place(self, group: SequenceGroup) -> list[int] | None:
        """Return the cached blocks that a waiting group begins with, or None if it cannot run."""
        if self.queues.num_running_seqs + group.num_seqs > self._max_num_seqs:
            return None
        return self.residency.find_place(group)

    def _schedule_group(self, group: SequenceGroup, step: StepBuilder) -> None:
        """Schedule the sequences of a running group, or preempt it if there is no room for them."""
        blocks, ready, has_slots = self._blocks, [], True
        for sequence in group.sequences.values():
            if sequence.status is not SequenceStatus.RUNNING:
                continue
            num_pending = sequence.num_pending_tokens
            if num_pending and group.beam_search is not None:
                continue
            start, end = sequence.num_computed_tokens, len(sequence.token_ids) + num_pending
            if start < end < group.max_num_tokens:  # at the largest length the pending is its last
                ready.append((sequence, start, end))
                has_slots = has_slots and blocks.has_slots(sequence.sequence_id, start, end)
        if not has_slots:
            ranges = [(sequence.sequence_id, start, end) for sequence, start, end in ready]
            if not self._preemptor.make_room(blocks.num_blocks_to_append(ranges), group, step):
                return
        for sequence, start, end in ready:
            if not step.token_budget:
                return
            num_new_blocks = 0
            num_drafts = self._draft_slots.num_slots(group, sequence, end, step)
            if not has_slots or num_drafts:
                slots = blocks.append_slots(sequence.sequence_id, start, end + num_drafts)
                num_new_blocks = step.grow(sequence, slots)
            if not sequence.is_mirrored:
                step.introduce(group, sequence, tuple(blocks.block_table(sequence.sequence_id)))
            step.add(sequence, end - start, num_new_blocks, num_drafts)
            if sequence.num_computed_tokens // blocks.block_size > sequence.num_published_blocks:
                self.prefix_cache.publish(sequence, group.cache_salt)
        if len(group.sequences) > 1:
            self.residency.fork_waiting(group)

    # ------------------------------------------------------------------ requests

    def add(self, submission: Submission, now: float = 0.0) -> tuple[int, Progress]:
        """Queue a request.

        Args:
            submission: its sampling parameters have a seed.
            now: seconds, never less than at an earlier call.

        Returns:
            The group's id, and what has become of it at once: sequences whose output was complete
            already have ended.

        Raises:
            InvalidRequestError: it can never run here; names field, limit and value.
        """
        group, progress = self._admission.make_group(submission, now), Progress()
        self.queues.advance(now)
        for sequence in list(group.sequences.values()):
            if sequence.num_output_tokens and (reason := group.finish_reason(sequence)):
                self._ends.finish_sequence(group, sequence, reason, progress)
        if group.sequences:
            self.queues.queue(group, submission.include_time_breakdown)
        else:
            progress.ended_group_ids.append(group.group_id)
        return group.group_id, progress

    def abort(self, group_id: int, now: float = 0.0) -> GroupTime | None:
        """End a group; its blocks are free for the next step.

        Args:
            group_id: of the group.
            now: as of `schedule`.

        Returns:
            Where its time has gone; None if it had ended before.
        """
        if (group := self.queues.find(group_id)) is None:
            return None
        self.queues.advance(now)
        progress = Progress()
        self._ends.end_group(group, progress)
        return progress.times[group_id]

    def abort_sequence(
        self, group_id: int, sequence_index: int, now: float = 0.0
    ) -> GroupTime | None:
        """End one sequence of a group; the others go on.

        Args:
            group_id: of the group.
            sequence_index: number of the sequence within the group.
            now: as of `schedule`.

        Returns:
            Where the group's time has gone if that was its last sequence, else None.
        """
        if (group := self.queues.find(group_id)) is None:
            return None
        for sequence in list(group.sequences.values()):
            if sequence.sequence_index == sequence_index:
                self._ends.end_sequence(group, sequence)
        if not group.sequences:
            return self.abort(group_id, now)
        if group_id in self.queues.running and not group.in_status(SequenceStatus.RUNNING):
            # The prompt was being computed again, by the sequence that has just ended.
            self.queues.advance(now)
            self.queues.preempt(group)
        return None

    def preempt_all(self, now: float = 0.0, has_failed: bool = False) -> Verdict:
        """Queue every group again, since the workers are lost; return whom that accuses.

        Args:
            now: as of `schedule`.
            has_failed: as of Trials.lost.
        """
        verdict = self._trials.lost(self._draft_slots.in_flight, has_failed)
        self.queues.advance(now)
        self.queues.wait_for(WaitReason.NOT_READY)
        while self.queues.running:
            self._preemptor.preempt_last(may_swap=False)
        for group in self.residency.swapped_groups:
            self.residency.reset(group)
        self._beam_forks.take_chosen_tokens()  # no step will carry them
        self._draft_slots.in_flight = {}
        self.residency.forget_workers()
        return verdict

    def check_invariants(self) -> None:
        """Raise AssertionError unless queues, statuses, block tables and counts agree."""
        self.queues.check_invariants()
        assert self.queues.num_running_seqs <= self._max_num_seqs, "too many sequences run"
        self.residency.check_invariants(self.queues.running, self.queues.waiting)
