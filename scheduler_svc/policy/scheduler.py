"""The pure scheduler: decides what every step computes. No clock, no I/O, no logging."""

from collections.abc import Collection, Iterable, Mapping

from quire.contract.outputs import FinishReason
from quire.contract.sampling_params import SamplingParams
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.blocks.prefix_cache import PrefixCache
from scheduler_svc.blocks.residency import Residency
from scheduler_svc.policy.admission import Admission, Request
from scheduler_svc.policy.group_queue import GroupQueue
from scheduler_svc.policy.outstanding import outstanding_tokens
from scheduler_svc.policy.step import (
    FinishedSequence,
    GroupTime,
    SchedulerOutputs,
    StepOutcome,
    StepResult,
)
from scheduler_svc.policy.step_builder import Batch
from scheduler_svc.policy.time_ledger import Ledger, Waiting
from scheduler_svc.sequences.beam_search import Continuation
from scheduler_svc.sequences.preemption import PreemptionCosts, PreemptionCounters, PreemptionMode
from scheduler_svc.sequences.sequence import Sequence, SequenceGroup, SequenceStatus


class Scheduler:
    """Continuous batching of sequence groups, in order of rank, with preemption.

    A step takes at most `max_num_batched_tokens` tokens of at most `max_num_seqs` sequences:

    1. Running groups go on, in order of rank. When blocks run out, the group of the last rank is
       preempted: its blocks are moved to the host's memory, or freed to be computed again.
    2. If nothing was preempted, waiting groups are resumed or admitted, in order of rank, while
       budget and blocks last. A prompt longer than the budget is computed in chunks.

    A group's rank is the time of its arrival, later by `priority_ageing_s` for each level of
    priority it is below others. So nobody is overtaken by more than what came within that time, the
    group of the first rank always advances, and nobody starves.

    A step may be scheduled while the one before it is still in flight, so that the workers need not
    wait: sequences go on with a token whose id is not known here yet. If that token turns out to
    end a sequence, its part in the step ahead is void; if the sequence was preempted meanwhile, the
    token is dropped and sampled again, to the same id. Beams wait, since what they compute next
    depends on each other.

    A group of several sequences computes its prompt once, as the first of them; the others are
    forked from it as soon as its computation is scheduled, and share its blocks.

    Args:
        block_manager: of the workers' cache.
        max_num_batched_tokens: tokens of one step, over all sequences.
        max_num_seqs: sequences that run at once.
        max_model_len: tokens, prompt and output, of one sequence.
        eos_token_ids: end-of-text ids of the model.
        enable_prefix_caching: let sequences share the blocks of a prefix that was computed before.
        preemption_mode: what becomes of a preempted group's blocks.
        priority_ageing_s: a request may be overtaken by one that comes so much later for each level
            of priority that is between them.

    Attributes:
        prefix_cache: what was found in it so far.
        preemption_costs: to be told what steps and moves have cost.
        counters: what preemption has come to so far.
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
    ) -> None:
        self._blocks = block_manager
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._preemption_mode = preemption_mode
        self._running = GroupQueue()
        # Preempted groups are here too, and come back before those that arrived after them.
        self._waiting = GroupQueue()
        self._num_running_seqs = 0
        # What beams have chosen since the last step.
        self._chosen_tokens: list[tuple[int, int]] = []
        self._admission = Admission(
            block_manager,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            eos_token_ids=eos_token_ids,
            priority_ageing_s=priority_ageing_s,
        )
        self.prefix_cache = PrefixCache(block_manager, enable_prefix_caching)
        self.preemption_costs = PreemptionCosts()
        self.counters = PreemptionCounters()
        self._residency = Residency(block_manager, self.prefix_cache, self.counters)
        self._ledger = Ledger()

    @property
    def num_waiting(self) -> int:
        """Groups that wait to be admitted or resumed."""
        return len(self._waiting)

    @property
    def num_swapped(self) -> int:
        """Groups among them that wait in the host's memory."""
        return len(self._residency.swapped_groups)

    @property
    def num_running(self) -> int:
        """Groups that hold blocks."""
        return len(self._running)

    @property
    def num_idle_slots(self) -> int:
        """Slots of blocks in use that hold no token yet: what the cache wastes."""
        return self._residency.num_idle_slots

    @property
    def outstanding_tokens(self) -> int:
        """What is yet to be computed, see `outstanding`."""
        return outstanding_tokens(
            self._running, self._waiting, len(self._waiting), self.prefix_cache
        )

    @property
    def has_unfinished(self) -> bool:
        """Whether there is anything to schedule."""
        return bool(self._running or self._waiting)

    # ------------------------------------------------------------------ requests

    def add(
        self,
        prompt_token_ids: Iterable[int],
        sampling_params: SamplingParams,
        outputs: Mapping[int, Iterable[int]] | None = None,
        *,
        now: float = 0.0,
        priority: int = 0,
        cache_salt: bytes = b"",
        traceparent: str = "",
        tell_time_account: bool = False,
    ) -> tuple[int, StepOutcome]:
        """Queue a request.

        Args:
            prompt_token_ids: at least one.
            sampling_params: with a seed.
            outputs: tokens that sequences of the request, by their index, produced before it was
                interrupted; they go on from there. Sequences that ended before are left out. None
                for a request that has not run yet.
            now: seconds, never less than at an earlier call.
            priority: smaller goes first.
            cache_salt: share cached prefixes with requests of the same salt only.
            traceparent: handed on to the workers.
            tell_time_account: with every token, not only with the end.

        Returns:
            The group's id, and what has become of it at once: sequences whose output was complete
            already have ended.

        Raises:
            InvalidRequestError: it can never run here; names field, limit and value.
        """
        request = Request(
            list(prompt_token_ids), sampling_params, outputs, priority, cache_salt, traceparent
        )
        group = self._admission.make_group(request, now)
        self._ledger.advance(now)
        outcome = StepOutcome()
        for sequence in list(group.sequences.values()):
            if sequence.num_output_tokens and (reason := group.finish_reason(sequence)):
                self._finish_sequence(group, sequence, reason, outcome)
        if group.sequences:
            self._waiting.add(group)
            self._ledger.arrived(group.group_id, tell_time_account)
        else:
            outcome.ended_group_ids.append(group.group_id)
        return group.group_id, outcome

    def abort(self, group_id: int) -> bool:
        """End a group now; its blocks are free for the next step.

        Returns:
            False when no such group runs or waits (any more).
        """
        group = self._find(group_id)
        if group is None:
            return False
        self._end_group(group)
        self._ledger.ended(group_id)
        return True

    def abort_sequence(self, group_id: int, sequence_index: int) -> bool:
        """End one sequence of a group; the others go on.

        Returns:
            Whether the group still goes on.
        """
        group = self._find(group_id)
        if group is None:
            return False
        for sequence in list(group.sequences.values()):
            if sequence.sequence_index == sequence_index:
                self._drop_sequence(group, sequence)
        if not group.sequences:
            self._end_group(group)
            self._ledger.ended(group_id)
            return False
        if group.group_id in self._running and not group.in_status(SequenceStatus.RUNNING):
            # The prompt was being computed again, by the sequence that has just ended.
            self._stop_running(group)
            self._waiting.add(group)
            self._ledger.preempted(group_id)
        return True

    def time_of(self, group_id: int, now: float) -> GroupTime | None:
        """Return where the time of a group has gone until `now`, None if it is not here."""
        self._ledger.advance(now)
        return self._ledger.so_far(group_id)

    def groups_of(self, orders: SchedulerOutputs) -> set[int]:
        """Return the ids of the groups that are part of the step scheduled last."""
        groups = self._residency.groups
        return {groups[sequence_id].group_id for sequence_id in orders.sequence_ids}

    # ------------------------------------------------------------------ steps

    def schedule(self, now: float = 0.0) -> SchedulerOutputs | None:
        """Return the orders of the next step, or None if nothing can be computed now.

        Args:
            now: seconds, on the clock of `add`. It decides nothing; accounts of time go by it.

        At most one step may be in flight: scheduled, and its result not given to `update`. None
        then means that what comes next depends on it; else, that nothing is unfinished, or that
        the groups that ran had to give up their blocks, and the next call resumes them.
        """
        self._ledger.advance(now)
        batch = Batch(self._max_num_batched_tokens)
        yielded = self._yield_to_first_waiting()
        self._schedule_running(batch)
        if not batch.preempted:
            self._admit_waiting(batch, only_first=yielded)
        self._ledger.queue_waits_for(self._why_waiting(batch, yielded))
        orders = batch.orders
        if not orders.sequence_ids:
            return None
        orders.chosen_tokens, self._chosen_tokens = self._chosen_tokens, []
        self._residency.take_orders(orders)
        return orders

    def update(self, result: StepResult, now: float = 0.0) -> StepOutcome:
        """Take what the workers sampled: extend sequences and end those that are complete.

        Args:
            result: of the oldest step in flight.
            now: as of `schedule`.
        """
        outcome, groups = StepOutcome(), self._residency.groups
        self._ledger.advance(now)
        prefilling = self._ledger.prefilling
        # First, since their sequences may end with this step's tokens.
        for prompt_logprobs in result.prompt_logprobs:
            group = self._residency.find(prompt_logprobs.sequence_id)
            if group is not None:
                outcome.prompt_logprobs.append((group.group_id, prompt_logprobs))
        tokens = zip(result.sequence_ids, result.token_ids, strict=True)
        for index, (sequence_id, token_id) in enumerate(tokens):
            group = groups.get(sequence_id)
            if group is None:
                continue  # aborted, preempted or found complete while the step ran
            sequence = group.sequences[sequence_id]
            sequence.num_pending_tokens -= 1
            if prefilling and group.group_id in prefilling:
                self._ledger.sampled(group.group_id)
            if group.beam_search is not None:
                if group.beam_search.report(sequence_id, result.logprobs[index]):
                    self._advance_beams(group, outcome)
                continue
            sequence.token_ids.append(token_id)
            outcome.group_ids.append(group.group_id)
            outcome.sequence_indices.append(sequence.sequence_index)
            outcome.token_ids.append(token_id)
            if result.logprobs:
                outcome.logprobs.append(result.logprobs[index])
            reason = group.finish_reason(sequence)
            if reason is not None:
                self._finish_sequence(group, sequence, reason, outcome)
        for sequence_id in result.failed_sequence_ids:
            group = groups.get(sequence_id)
            if group is not None:
                self._fail_group(group, outcome)
        self._ledger.tell(outcome)
        return outcome

    def preempt_all(self, now: float = 0.0) -> None:
        """Send every group back to the waiting queue: the workers have lost their state.

        Args:
            now: as of `schedule`.
        """
        self._ledger.advance(now)
        self._ledger.queue_waits_for(Waiting.NOT_READY)
        while self._running:
            self._preempt_last(may_swap=False)
        for group in self._residency.swapped_groups:
            self._residency.reset(group)
        self._chosen_tokens.clear()
        self._residency.forget_workers()

    # ------------------------------------------------------------------ policy

    def _yield_to_first_waiting(self) -> bool:
        """Preempt groups of a later rank than the first waiting one until that one can run.

        Only priorities bring this about: else whoever waits has come after those that run.
        """
        yielded = False
        while self._waiting and self._running:
            first = self._waiting.first
            if first.rank > self._running.last.rank or self._find_place(first) is not None:
                break
            self._preempt_last()
            yielded = True
        return yielded

    def _schedule_running(self, batch: Batch) -> None:
        for group in list(self._running):
            # A group missing here was preempted for an earlier one, as was every group after it.
            if not batch.token_budget or group.group_id not in self._running:
                return
            self._schedule_group(group, batch)

    def _schedule_group(self, group: SequenceGroup, batch: Batch) -> None:
        """Schedule the sequences of a running group, or preempt it if there is no room for them."""
        blocks, ready, has_slots = self._blocks, [], True
        for sequence in group.sequences.values():
            if sequence.status is not SequenceStatus.RUNNING:
                continue
            num_pending = sequence.num_pending_tokens
            if num_pending and group.beam_search is not None:
                continue
            start, end = sequence.num_computed_tokens, len(sequence.token_ids) + num_pending
            # At the largest length, the pending token is its last.
            if start < end < group.max_num_tokens:
                ready.append((sequence, start, end))
                has_slots = has_slots and blocks.has_slots(sequence.sequence_id, start, end)
        if not has_slots:
            ranges = [(sequence.sequence_id, start, end) for sequence, start, end in ready]
            if not self._make_room(blocks.num_blocks_to_append(ranges), group, batch):
                return
        for sequence, start, end in ready:
            if not batch.token_budget:
                return
            slots = table = None
            if not has_slots:
                slots = blocks.append_slots(sequence.sequence_id, start, end)
            if not sequence.is_mirrored:
                table = tuple(blocks.block_table(sequence.sequence_id))
            batch.schedule(group, sequence, end - start, table, slots)
            if sequence.num_computed_tokens // blocks.block_size > sequence.num_published_blocks:
                self.prefix_cache.publish(sequence, group.cache_salt)
        if len(group.sequences) > 1:
            self._residency.fork_waiting(group)

    def _make_room(self, num_blocks: int, group: SequenceGroup, batch: Batch) -> bool:
        """Preempt from the end until `num_blocks` are free; False if that took `group` too."""
        while num_blocks > self._blocks.num_free_blocks:
            batch.preempted = True
            if self._preempt_last() is group:
                return False
        return True

    def _admit_waiting(self, batch: Batch, only_first: bool) -> None:
        while self._waiting and batch.token_budget:
            group = self._waiting.first
            prefix = self._find_place(group)
            if prefix is None:
                return
            self._waiting.remove(group)
            self._running.add(group)
            self._num_running_seqs += group.num_seqs
            self._ledger.admitted(group.group_id)
            self._residency.admit(group, prefix)
            self._schedule_group(group, batch)
            if only_first:
                # Those preempted for it may have a token in flight, which is still to be dropped.
                return

    def _find_place(self, group: SequenceGroup) -> list[int] | None:
        """Return the cached blocks that a waiting group begins with, or None if it cannot run."""
        if self._num_running_seqs + group.num_seqs > self._max_num_seqs:
            return None
        return self._residency.find_place(group)

    def _why_waiting(self, batch: Batch, yielded: bool) -> Waiting:
        """Return what keeps the first of the queue from running, now that a step is scheduled."""
        if not self._waiting or yielded:
            return Waiting.STEP
        if batch.preempted:
            return Waiting.BLOCKS
        if not batch.token_budget:
            return Waiting.TOKENS
        num_seqs = self._num_running_seqs + self._waiting.first.num_seqs
        return Waiting.SEQS if num_seqs > self._max_num_seqs else Waiting.BLOCKS

    # ------------------------------------------------------------------ beams

    def _advance_beams(self, group: SequenceGroup, outcome: StepOutcome) -> None:
        """All beams of a group have reported: keep, fork and drop them as the search decides."""
        search, beams = group.beam_search, dict(group.sequences)
        assert search is not None, "only groups of beams have a search"
        continuations = search.advance(
            {sequence_id: beam.token_ids for sequence_id, beam in beams.items()},
            group.stop_token_ids,
            group.max_num_tokens,
        )
        if not continuations:
            outcome.hypotheses.append((group.group_id, search.hypotheses()))
            outcome.ended_group_ids.append(group.group_id)
            self._end_group(group)
            return
        kept: dict[int, Continuation] = {}
        for each in continuations:
            # The first continuation of a beam goes on in its sequence, the others in copies.
            is_first = each.sequence_id not in kept
            beam = beams[each.sequence_id]
            if not is_first:
                beam = self._residency.fork(group, beam, self._admission.next_sequence_id())
            kept[beam.sequence_id] = each
        for sequence_id in beams.keys() - kept.keys():
            self._drop_sequence(group, beams[sequence_id])
        for sequence_id, each in kept.items():
            group.sequences[sequence_id].token_ids.append(each.token_id)
            self._chosen_tokens.append((sequence_id, each.token_id))
        search.rename(kept)

    # ------------------------------------------------------------------ preemption

    def _preempt_last(self, may_swap: bool = True) -> SequenceGroup:
        """Preempt the running group of the last rank, which keeps its place in the queue."""
        group = self._running.last
        self._stop_running(group)
        self._waiting.add(group)
        self._ledger.preempted(group.group_id)
        self.counters.preemptions += 1
        # A token in flight is dropped; computing the one before it again samples it again.
        lengths = {
            each.sequence_id: min(each.num_computed_tokens, each.num_tokens - 1)
            for each in group.in_status(SequenceStatus.RUNNING)
        }
        if may_swap and self._should_swap(group, lengths):
            self.counters.swaps += 1
            self._residency.swap_out(group, lengths)
        else:
            self.counters.recomputed_tokens += sum(lengths.values())
            self._residency.reset(group)
        if group.beam_search is not None:
            group.beam_search.forget_reports()
        return group

    def _should_swap(self, group: SequenceGroup, lengths: Mapping[int, int]) -> bool:
        num_blocks = self._blocks.num_blocks_held(lengths)
        if (
            self._preemption_mode is PreemptionMode.RECOMPUTE
            or not num_blocks
            or num_blocks > self._blocks.num_free_host_blocks
        ):
            return False
        if self._preemption_mode is PreemptionMode.SWAP:
            return True
        num_shared = next(iter(group.sequences.values())).num_shareable_tokens
        num_tokens = sum(lengths.values()) - (len(lengths) - 1) * num_shared
        return self.preemption_costs.moving_is_cheaper(num_tokens, num_blocks, len(lengths))

    # ------------------------------------------------------------------ bookkeeping

    def _find(self, group_id: int) -> SequenceGroup | None:
        return self._running.get(group_id) or self._waiting.get(group_id)

    def _finish_sequence(
        self,
        group: SequenceGroup,
        sequence: Sequence,
        reason: FinishReason,
        outcome: StepOutcome,
    ) -> None:
        self._drop_sequence(group, sequence)
        outcome.finished.append(FinishedSequence(group.group_id, sequence.sequence_index, reason))
        if not group.sequences and self._find(group.group_id) is not None:
            self._end_group(group)
            outcome.ended_group_ids.append(group.group_id)

    def _fail_group(self, group: SequenceGroup, outcome: StepOutcome) -> None:
        if group.beam_search is not None:
            indices = list(range(group.sampling_params.n))
        else:
            indices = [each.sequence_index for each in group.sequences.values()]
        outcome.finished.extend(
            FinishedSequence(group.group_id, index, FinishReason.ERROR) for index in indices
        )
        outcome.ended_group_ids.append(group.group_id)
        self._end_group(group)

    def _end_group(self, group: SequenceGroup) -> None:
        for sequence in list(group.sequences.values()):
            self._drop_sequence(group, sequence)
        if group.group_id in self._running:
            self._stop_running(group)
        else:
            self._waiting.remove(group)

    def _stop_running(self, group: SequenceGroup) -> None:
        self._running.remove(group)
        self._num_running_seqs -= group.num_seqs

    def _drop_sequence(self, group: SequenceGroup, sequence: Sequence) -> None:
        """End a sequence; its blocks are free unless others share them."""
        num_before = group.num_seqs
        self._residency.drop(group, sequence)
        if group.group_id in self._running:
            self._num_running_seqs -= num_before - group.num_seqs

    def check_invariants(self) -> None:
        """Raise AssertionError unless queues, statuses, block tables and counts agree."""
        for queue in (self._running, self._waiting):
            ranks = [group.rank for group in queue]
            assert ranks == sorted(set(ranks)), "a queue is not in order of rank"
            assert all(group.sequences for group in queue), "an ended group is queued"
        num_seqs = sum(group.num_seqs for group in self._running)
        assert self._num_running_seqs == num_seqs <= self._max_num_seqs, "sequences miscounted"
        self._residency.check_invariants(self._running, self._waiting)
        self._ledger.check_invariants(self.num_running + self.num_waiting)
