"""A step while it is put together."""

from dataclasses import dataclass, field

from quire.contract.steps import SchedulerOutputs, SequenceState
from scheduler_svc.blocks.manager import AppendedSlots
from scheduler_svc.sequences.sequence import Sequence, SequenceGroup


@dataclass(slots=True)
class StepBuilder:
    """The orders of a step so far and the tokens that it may still take.

    Attributes:
        token_budget: tokens that the step may still take.
        outputs: orders so far; releases, forks and chosen tokens are added at the end.
        has_preempted: whether a group had to give up its blocks for one that goes on.
    """

    token_budget: int
    outputs: SchedulerOutputs = field(default_factory=SchedulerOutputs)
    has_preempted: bool = False

    def add(
        self,
        group: SequenceGroup,
        sequence: Sequence,
        num_tokens: int,
        block_table: tuple[int, ...] | None,
        slots: AppendedSlots | None,
    ) -> None:
        """Let `sequence` compute as many of its tokens as the budget allows.

        Mutates: `sequence`, whose tokens count as computed from now on, since steps run in order.

        Args:
            group: that it belongs to.
            sequence: has slots for what it computes.
            num_tokens: that it has yet to compute, at least one.
            block_table: all of its blocks, if the workers do not hold it; else None.
            slots: what has changed in its table since the last step; None for nothing.
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
        self.token_budget -= num_tokens
        outputs.sequence_ids.append(sequence.sequence_id)
        outputs.num_scheduled_tokens.append(num_tokens)
        outputs.num_new_blocks.append(num_new_blocks)


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
