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
        outputs: orders so far; releases, forks and chosen tokens are added at the end.
        draft_slots: slots for drafts that it has so far, by sequence.
        has_preempted: whether a group had to give up its blocks for one that goes on.
    """

    token_budget: int
    planned_slots: Mapping[int, int]
    outputs: SchedulerOutputs = field(default_factory=SchedulerOutputs)
    draft_slots: dict[int, int] = field(default_factory=dict)
    has_preempted: bool = False

    def add(
        self,
        group: SequenceGroup,
        sequence: Sequence,
        num_tokens: int,
        block_table: tuple[int, ...] | None,
        slots: AppendedSlots | None,
        num_draft_slots: int,
    ) -> None:
        """Let `sequence` compute as many of its tokens as the budget allows.

        Mutates: `sequence`, whose tokens count as computed from now on, since steps run in order.

        Args:
            group: that it belongs to.
            sequence: has slots for what it computes.
            num_tokens: that it has yet to compute, at least one.
            block_table: all of its blocks, if the workers do not hold it; else None.
            slots: what has changed in its table since the last step; None for nothing.
            num_draft_slots: slots behind its last token that the workers may draft for.
        """
        outputs, num_new_blocks = self.outputs, 0
        if block_table is not None:
            outputs.new_sequences.append(_state(group, sequence, block_table))
            sequence.is_mirrored = True
        if slots is not None:
            outputs.blocks_to_copy.extend(slots.copies)
            if block_table is None:
                num_new_blocks = len(slots.new_block_ids)
                outputs.new_block_ids.extend(slots.new_block_ids)
                outputs.replaced_blocks.extend(
                    (sequence.sequence_id, place, copy)
                    for place, (_, copy) in enumerate(slots.copies, slots.first_copied)
                )
        if num_tokens > self.token_budget:
            num_tokens = self.token_budget
        else:
            sequence.num_pending_tokens += 1
        sequence.num_computed_tokens += num_tokens
        self.token_budget -= num_tokens + num_draft_slots
        if num_draft_slots:
            self.draft_slots[sequence.sequence_id] = num_draft_slots
        outputs.sequence_ids.append(sequence.sequence_id)
        outputs.num_scheduled_tokens.append(num_tokens)
        outputs.num_new_blocks.append(num_new_blocks)

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
