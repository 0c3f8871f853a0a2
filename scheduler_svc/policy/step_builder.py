"""A step while it is put together."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from quire.contract.steps import SchedulerOutputs, SequenceState
from scheduler_svc.blocks.manager import AppendedSlots
from scheduler_svc.policy.queues import Queues
from scheduler_svc.policy.time_ledger import WaitReason
from scheduler_svc.sequences.sequence import Sequence, SequenceGroup


@dataclass(slots=True)
class StepBuilder:
    """The orders of a step so far and the tokens that it may still take.

    Attributes:
        token_budget: tokens that the step may still take.
        planned_slots: slots for drafts, by sequence, that the step should have.
        draft_budget: slots for drafts that the step may still have.
        outputs: orders so far; releases, forks and chosen tokens are added at the end.
        draft_slots: slots for drafts that it has so far, by sequence.
        has_preempted: whether a group had to give up its blocks for one that goes on.
    """

    token_budget: int
    planned_slots: Mapping[int, int]
    draft_budget: int
    outputs: SchedulerOutputs = field(default_factory=SchedulerOutputs)
    draft_slots: dict[int, int] = field(default_factory=dict)
    has_preempted: bool = False

    def add(
        self,
        sequence: Sequence,
        num_tokens: int,
        num_new_blocks: int = 0,
        num_draft_slots: int = 0,
    ) -> None:
        """Let `sequence` compute as many of its tokens as the budget allows.

        Mutates: `sequence`, whose tokens count as computed from now on, since steps run in order.

        Args:
            sequence: has slots for what it computes; the workers hold it, or `introduce` has
                brought it.
            num_tokens: that it has yet to compute, at least one.
            num_new_blocks: what `grow` returned for it; 0 if its table is as in the last step.
            num_draft_slots: slots behind its last token that the workers may draft for.
        """
        if num_tokens > self.token_budget:
            num_tokens = self.token_budget
        elif sequence.samples:
            sequence.num_pending_tokens += 1
        if num_draft_slots:
            self.draft_slots[sequence.sequence_id] = num_draft_slots
            self.token_budget -= num_draft_slots
            self.draft_budget -= num_draft_slots
        self.token_budget -= num_tokens
        sequence.num_computed_tokens += num_tokens
        outputs = self.outputs
        outputs.sequence_ids.append(sequence.sequence_id)
        outputs.num_scheduled_tokens.append(num_tokens)
        outputs.num_new_blocks.append(num_new_blocks)

    def add_decoding(self, group: SequenceGroup, block_size: int) -> bool:
        """Add the next token of a group if it needs no block for it, as in most steps.

        The block of the token before has a slot left, and blocks that are not full are shared
        within a group only. Blocks are published in the step that needs another one.

        Args:
            group: that runs.
            block_size: slots of a block.

        Returns:
            Whether it was added; what else it may need is not looked at here.
        """
        if not group.is_single or self.planned_slots:
            return False
        (sequence,) = group.sequences.values()
        start = sequence.num_computed_tokens
        end = len(sequence.token_ids) + sequence.num_pending_tokens
        if (
            end - start != 1
            or start % block_size == 0
            or end >= group.max_num_tokens
            or not sequence.is_mirrored
        ):
            return False
        self.add(sequence, 1)
        return True

    def introduce(
        self, group: SequenceGroup, sequence: Sequence, block_table: tuple[int, ...]
    ) -> None:
        """Bring the workers a sequence that they do not hold, before it is added.

        Mutates: sequence.

        Args:
            group: that it belongs to.
            sequence: as it stands before the step.
            block_table: all of its blocks.
        """
        self.outputs.new_sequences.append(_state(group, sequence, block_table))
        sequence.is_mirrored = True

    def grow(self, sequence: Sequence, slots: AppendedSlots) -> int:
        """Order what has changed in the table of a sequence that is about to be added.

        Args:
            sequence: if the workers do not hold it, `introduce` will bring its new table.
            slots: the changes.

        Returns:
            The number of new blocks that the workers are to append to the table they hold.
        """
        outputs = self.outputs
        outputs.blocks_to_copy.extend(slots.copies)
        if not sequence.is_mirrored:
            return 0
        outputs.new_block_ids.extend(slots.new_block_ids)
        outputs.replaced_blocks.extend(
            (sequence.sequence_id, place, copy)
            for place, (_, copy) in enumerate(slots.copies, slots.first_copied)
        )
        return len(slots.new_block_ids)

    def num_draft_slots(self) -> list[int]:
        """Return the slots for drafts, parallel to the sequences; empty without any."""
        slots = self.draft_slots
        return [slots.get(each, 0) for each in self.outputs.sequence_ids] if slots else []


def _state(group: SequenceGroup, sequence: Sequence, block_table: tuple[int, ...]) -> SequenceState:
    return SequenceState(
        sequence_id=sequence.sequence_id,
        sequence_index=sequence.sequence_index,
        token_ids=tuple(sequence.token_ids),
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        block_ids=block_table,
        sampling_params=group.sampling_params,
        num_candidates=0 if group.beam_search is None else group.beam_search.num_candidates,
        traceparent=group.traceparent,
        cache_salt=group.cache_salt,
        pooling_params=group.pooling_params,
    )


def wait_reason(
    queues: Queues, step: StepBuilder, has_yielded: bool, max_num_seqs: int
) -> WaitReason:
    """Return what keeps the first waiting group from running, now that a step is scheduled.

    Args:
        queues: the groups.
        step: as it was scheduled.
        has_yielded: whether running groups were preempted for one that waited.
        max_num_seqs: sequences that run at once.
    """
    if not queues.waiting or has_yielded:
        return WaitReason.STEP
    if step.has_preempted:
        return WaitReason.BLOCKS
    if not step.token_budget:
        return WaitReason.TOKENS
    num_seqs = queues.num_running_seqs + queues.waiting.first.num_seqs
    return WaitReason.SEQS if num_seqs > max_num_seqs else WaitReason.BLOCKS
