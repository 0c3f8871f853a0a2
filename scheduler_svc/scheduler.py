"""The pure scheduler: decides what every step computes. No clock, no I/O, no logging."""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import count

from quire.errors import InvalidRequestError
from quire.outputs import FinishReason
from quire.sampling_params import SamplingParams
from scheduler_svc.block_manager import AllocStatus, BlockSpaceManager
from scheduler_svc.prefix_cache import PrefixCache
from scheduler_svc.sequence import Sequence, SequenceGroup, SequenceStatus
from scheduler_svc.step import (
    FinishedGroup,
    SchedulerOutputs,
    SequenceState,
    StepOutcome,
    StepResult,
)


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of a request that was added.

    Attributes:
        group_id: names it from now on.
        finish_reason: why a resumed request needs no step at all; None when it waits for its turn.
    """

    group_id: int
    finish_reason: FinishReason | None


@dataclass(slots=True)
class _Batch:
    """A step in the making: the orders so far and the tokens it may still take."""

    token_budget: int
    preempted: bool = False
    new_sequences: list[SequenceState] = field(default_factory=list)
    blocks_to_copy: list[tuple[int, int]] = field(default_factory=list)
    sequence_ids: list[int] = field(default_factory=list)
    num_scheduled_tokens: list[int] = field(default_factory=list)
    num_new_blocks: list[int] = field(default_factory=list)
    new_block_ids: list[int] = field(default_factory=list)

    def schedule(self, sequence: Sequence, num_new_blocks: int) -> None:
        """Let `sequence` compute as many of its tokens as the budget allows.

        Mutates: `sequence`, whose tokens count as computed from now on, since steps run in order.
        """
        num_tokens = (
            len(sequence.token_ids) + sequence.num_pending_tokens - sequence.num_computed_tokens
        )
        if num_tokens > self.token_budget:
            num_tokens = self.token_budget
        else:
            sequence.num_pending_tokens += 1
        assert num_tokens > 0, f"sequence {sequence.sequence_id} has nothing to compute"
        sequence.num_computed_tokens += num_tokens
        self.token_budget -= num_tokens
        self.sequence_ids.append(sequence.sequence_id)
        self.num_scheduled_tokens.append(num_tokens)
        self.num_new_blocks.append(num_new_blocks)


class Scheduler:
    """Continuous batching, first come first served, with preemption by recompute.

    A step takes at most `max_num_batched_tokens` tokens of at most `max_num_seqs` sequences:

    1. Running groups go on, in order of arrival. When blocks run out, the group that arrived last
       is preempted: its blocks are freed, it goes to the front of the waiting queue, output kept.
    2. If nothing was preempted, waiting groups are admitted in order while budget and blocks last.
       A prompt longer than the budget is computed in chunks over several steps.

    So every running group arrived before every waiting one, the oldest group always advances, and
    nobody starves.

    A step may be scheduled while the one before it is still in flight, so that the workers need not
    wait: sequences go on with a token whose id is not known here yet. If that token turns out to
    end a sequence, its part in the step ahead is void; if the sequence was preempted meanwhile, the
    token is dropped and sampled again, to the same id, when the sequence is recomputed.

    Args:
        block_manager: of the workers' cache.
        max_num_batched_tokens: tokens of one step, over all sequences.
        max_num_seqs: sequences that run at once.
        max_model_len: tokens, prompt and output, of one sequence.
        eos_token_ids: end-of-text ids of the model.
        enable_prefix_caching: let sequences share the blocks of a prefix that was computed before.

    Attributes:
        prefix_cache: what was found in it so far.
        num_preemptions: so far.
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
    ) -> None:
        self._blocks = block_manager
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._max_model_len = max_model_len
        self._eos_token_ids = frozenset(eos_token_ids)
        # Both in order of arrival, by group id.
        self._running: dict[int, SequenceGroup] = {}
        self._waiting: OrderedDict[int, SequenceGroup] = OrderedDict()
        # By the id of each running sequence.
        self._group_of: dict[int, SequenceGroup] = {}
        self._released_sequence_ids: list[int] = []
        self._next_group_id = count(1)
        self._next_sequence_id = count(1)
        self.prefix_cache = PrefixCache(block_manager, enable_prefix_caching)
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        """Groups that wait to be admitted, preempted ones included."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Groups that hold blocks."""
        return len(self._running)

    @property
    def num_idle_slots(self) -> int:
        """Slots of blocks in use that hold no token yet: what the cache wastes."""
        return sum(
            len(self._blocks.block_table(sequence.sequence_id)) * self._blocks.block_size
            - sequence.num_computed_tokens
            for group in self._running.values()
            for sequence in group.sequences.values()
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
        output_token_ids: Iterable[int] = (),
    ) -> Admission:
        """Queue a request behind all others.

        Args:
            prompt_token_ids: at least one.
            sampling_params: with a seed.
            output_token_ids: tokens that the request produced before it was interrupted; it goes on
                from there, and they count as output.

        Raises:
            InvalidRequestError: it can never run here; names field, limit and value.
        """
        sequence = Sequence(next(self._next_sequence_id), 0, prompt_token_ids, output_token_ids)
        if not sequence.num_prompt_tokens:
            raise InvalidRequestError("prompt", "must hold at least 1 token, got 0")
        if sequence.num_prompt_tokens >= self._max_model_len:
            raise InvalidRequestError(
                "prompt",
                f"must hold fewer tokens than max_model_len ({self._max_model_len}), "
                f"got {sequence.num_prompt_tokens}",
            )
        if sequence.num_tokens > self._max_model_len:
            raise InvalidRequestError(
                "output_token_ids",
                f"must hold at most max_model_len ({self._max_model_len}) tokens with the prompt, "
                f"got {sequence.num_tokens}",
            )
        group = self._make_group(sequence, sampling_params)
        if sequence.num_output_tokens and (reason := group.finish_reason(sequence)):
            return Admission(group.group_id, reason)
        if self._blocks.can_allocate(sequence.num_tokens) is AllocStatus.NEVER:
            raise InvalidRequestError(
                "prompt",
                f"must fit into the cache of {self._blocks.num_slots} tokens, "
                f"got {sequence.num_tokens}",
            )
        self._waiting[group.group_id] = group
        return Admission(group.group_id, None)

    def abort(self, group_id: int) -> bool:
        """End a group now; its blocks are free for the next step.

        Returns:
            False when no such group runs or waits (any more).
        """
        group = self._running.pop(group_id, None) or self._waiting.pop(group_id, None)
        if group is None:
            return False
        self._retire(group, SequenceStatus.FINISHED)
        return True

    # ------------------------------------------------------------------ steps

    def schedule(self) -> SchedulerOutputs | None:
        """Return the orders of the next step, or None if nothing can be computed now.

        At most one step may be in flight: scheduled, and its result not given to `update`. None
        then means that what comes next depends on it; else, that nothing is unfinished, or that
        the groups that ran had to give up their blocks, and the next call admits them again.
        """
        batch = _Batch(self._max_num_batched_tokens)
        self._schedule_running(batch)
        if not batch.preempted:
            self._admit_waiting(batch)
        if not batch.sequence_ids:
            return None
        released, self._released_sequence_ids = self._released_sequence_ids, []
        return SchedulerOutputs(
            released_sequence_ids=released,
            new_sequences=batch.new_sequences,
            blocks_to_copy=batch.blocks_to_copy,
            sequence_ids=batch.sequence_ids,
            num_scheduled_tokens=batch.num_scheduled_tokens,
            num_new_blocks=batch.num_new_blocks,
            new_block_ids=batch.new_block_ids,
        )

    def update(self, result: StepResult) -> StepOutcome:
        """Take what the workers sampled: extend sequences and end those that are complete."""
        outcome = StepOutcome([], [], [])
        tokens = zip(result.sequence_ids, result.token_ids, strict=True)
        for index, (sequence_id, token_id) in enumerate(tokens):
            group = self._group_of.get(sequence_id)
            if group is None:
                continue  # aborted, preempted or found complete while the step ran
            sequence = group.sequences[sequence_id]
            sequence.num_pending_tokens -= 1
            sequence.token_ids.append(token_id)
            outcome.group_ids.append(group.group_id)
            outcome.token_ids.append(token_id)
            if result.logprobs:
                outcome.logprobs.append(result.logprobs[index])
            reason = group.finish_reason(sequence)
            if reason is not None:
                self._finish(group, reason, outcome)
        for sequence_id in result.failed_sequence_ids:
            group = self._group_of.get(sequence_id)
            if group is not None:
                self._finish(group, FinishReason.ERROR, outcome)
        return outcome

    def preempt_all(self) -> None:
        """Send every running group back to the waiting queue: the workers have lost their state."""
        while self._running:
            self._preempt_last()
        self._released_sequence_ids.clear()
        self._blocks.forget_contents()

    # ------------------------------------------------------------------ policy

    def _schedule_running(self, batch: _Batch) -> None:
        blocks, block_size = self._blocks, self._blocks.block_size
        for group in list(self._running.values()):
            # A group missing here was preempted for an earlier one, as was every group after it.
            if not batch.token_budget or group.group_id not in self._running:
                return
            for sequence in group.sequences.values():
                start = sequence.num_computed_tokens
                end = len(sequence.token_ids) + sequence.num_pending_tokens
                if end >= group.max_num_tokens:
                    continue  # the pending token is its last
                num_needed = blocks.num_blocks_to_append(sequence.sequence_id, start, end)
                num_new_blocks = 0
                if num_needed:
                    if not self._make_room(num_needed, group, batch):
                        return
                    slots = blocks.append_slots(sequence.sequence_id, start, end)
                    batch.blocks_to_copy.extend(slots.copies)
                    batch.new_block_ids.extend(slots.new_block_ids)
                    num_new_blocks = len(slots.new_block_ids)
                batch.schedule(sequence, num_new_blocks)
                if sequence.num_computed_tokens // block_size > sequence.num_published_blocks:
                    self.prefix_cache.publish(sequence)

    def _make_room(self, num_blocks: int, group: SequenceGroup, batch: _Batch) -> bool:
        """Preempt from the end until `num_blocks` are free; False if that took `group` too."""
        while num_blocks > self._blocks.num_free_blocks:
            batch.preempted = True
            if self._preempt_last() is group:
                return False
        return True

    def _admit_waiting(self, batch: _Batch) -> None:
        while self._waiting and batch.token_budget and len(self._running) < self._max_num_seqs:
            group = next(iter(self._waiting.values()))
            (sequence,) = group.sequences.values()
            prefix = self.prefix_cache.find(sequence)
            status = self._blocks.can_allocate(sequence.num_tokens, prefix)
            # `add` refuses what can never fit, `max_num_tokens` ends what would outgrow the cache.
            assert status is not AllocStatus.NEVER, f"sequence {sequence.sequence_id} cannot fit"
            if status is AllocStatus.LATER:
                return
            del self._waiting[group.group_id]
            self._admit(group, sequence, prefix, batch)

    def _admit(
        self, group: SequenceGroup, sequence: Sequence, prefix: list[int], batch: _Batch
    ) -> None:
        """Give the sequence blocks for all its tokens, even if this step computes only a chunk."""
        self._blocks.allocate(sequence.sequence_id, sequence.num_tokens, prefix)
        self.prefix_cache.take(sequence, prefix)
        sequence.status = SequenceStatus.RUNNING
        self._running[group.group_id] = group
        self._group_of[sequence.sequence_id] = group
        batch.new_sequences.append(
            SequenceState(
                sequence_id=sequence.sequence_id,
                sequence_index=sequence.sequence_index,
                token_ids=tuple(sequence.token_ids),
                num_prompt_tokens=sequence.num_prompt_tokens,
                num_computed_tokens=sequence.num_computed_tokens,
                block_ids=tuple(self._blocks.block_table(sequence.sequence_id)),
                sampling_params=group.sampling_params,
            )
        )
        batch.schedule(sequence, num_new_blocks=0)
        self.prefix_cache.publish(sequence)

    def _preempt_last(self) -> SequenceGroup:
        """Preempt the running group that arrived last; recompute will cover prompt and output."""
        group_id, group = self._running.popitem()
        self._retire(group, SequenceStatus.WAITING)
        self._waiting[group_id] = group
        self._waiting.move_to_end(group_id, last=False)
        self.num_preemptions += 1
        return group

    # ------------------------------------------------------------------ bookkeeping

    def _make_group(self, sequence: Sequence, params: SamplingParams) -> SequenceGroup:
        # A sequence one token longer than the cache has all others in it, and can go no further.
        max_num_tokens = min(self._max_model_len, self._blocks.num_slots + 1)
        if params.max_tokens is not None:
            max_num_tokens = min(max_num_tokens, sequence.num_prompt_tokens + params.max_tokens)
        stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_token_ids |= self._eos_token_ids
        return SequenceGroup(
            next(self._next_group_id), [sequence], params, stop_token_ids, max_num_tokens
        )

    def _finish(self, group: SequenceGroup, reason: FinishReason, outcome: StepOutcome) -> None:
        del self._running[group.group_id]
        self._retire(group, SequenceStatus.FINISHED)
        outcome.finished.append(FinishedGroup(group.group_id, reason))

    def _retire(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """Take blocks from a group that no longer runs, and have the workers forget it."""
        for sequence in group.sequences.values():
            if sequence.status is SequenceStatus.RUNNING:
                self.prefix_cache.publish(sequence)
                self._blocks.free(sequence.sequence_id)
                del self._group_of[sequence.sequence_id]
                self._released_sequence_ids.append(sequence.sequence_id)
            sequence.num_computed_tokens = 0
            sequence.num_pending_tokens = 0
            sequence.num_published_blocks = 0
            sequence.status = status

    def check_invariants(self) -> None:
        """Raise AssertionError unless queues, statuses, block tables and counts agree."""
        self._blocks.check_invariants()
        arrival = [*self._running, *self._waiting]
        assert arrival == sorted(set(arrival)), "the queues are not in order of arrival"
        assert len(self._running) <= self._max_num_seqs, "too many groups run"
        running_ids = set()
        for group in self._running.values():
            for sequence in group.sequences.values():
                running_ids.add(sequence.sequence_id)
                assert sequence.status is SequenceStatus.RUNNING
                assert self._group_of[sequence.sequence_id] is group
                num_expected = sequence.num_tokens + sequence.num_pending_tokens
                assert 0 <= sequence.num_computed_tokens <= num_expected
                assert 0 <= sequence.num_pending_tokens <= 2, "more than two steps in flight"
                num_slots = len(self._blocks.block_table(sequence.sequence_id)) * (
                    self._blocks.block_size
                )
                assert sequence.num_computed_tokens <= num_slots, "computed tokens without slots"
        assert running_ids == self._group_of.keys(), "sequences and groups disagree"
        assert running_ids == self._blocks.sequence_ids, "blocks without a running sequence"
        for group in self._waiting.values():
            for sequence in group.sequences.values():
                assert sequence.status is SequenceStatus.WAITING
                assert sequence.num_computed_tokens == sequence.num_pending_tokens == 0
