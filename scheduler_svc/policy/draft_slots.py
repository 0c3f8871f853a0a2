"""Slots for drafts: given to sequences of a step, and taken back when its result is in."""

from collections import Counter
from collections.abc import Container
from itertools import islice

from quire.contract.steps import StepResult, max_sampled_rows
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.policy.queues import Queues
from scheduler_svc.policy.speculation import Speculation
from scheduler_svc.policy.step_builder import StepBuilder
from scheduler_svc.sequences.sequence import Sequence, SequenceGroup, SequenceStatus


class DraftSlots:
    """Gives as many slots as speculation asks for, and the cache and the limits allow.

    Args:
        block_manager: of the workers' cache.
        queues: the groups.
        max_num_batched_tokens: tokens of one step, over all sequences.
        max_num_seqs: sequences that run at once.
        max_draft_tokens: the most slots of a sequence in a step; 0 for no speculation.

    Attributes:
        speculation: decides which sequences should have slots.
        in_flight: slots by sequence, in batch order, of the step in flight that has any.
        nothing_starts: whether the first waiting group found no place when it was last looked for.
    """

    def __init__(
        self,
        block_manager: BlockSpaceManager,
        queues: Queues,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        max_draft_tokens: int,
    ) -> None:
        self._blocks = block_manager
        self._queues = queues
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self.speculation = Speculation(max_draft_tokens)
        self.in_flight: dict[int, int] = {}
        self.nothing_starts = False
        self._num_reserved = 0

    def begin_step(self) -> StepBuilder:
        """Return the next step, without orders yet, with the slots that sequences should have."""
        if not self.speculation.is_on:
            return StepBuilder(self._max_num_batched_tokens, {}, 0)
        budget = self._draft_budget()
        return StepBuilder(self._max_num_batched_tokens, self._plan(budget), budget)

    def leave_room_for(self, group: SequenceGroup, step: StepBuilder) -> bool:
        """Return whether rows are left for a waiting group to sample, beside drafts of the step."""
        num_rows = self._queues.num_running_seqs + sum(step.draft_slots.values())
        return num_rows + group.num_seqs <= max_sampled_rows(self._max_num_seqs)

    def _draft_budget(self) -> int:
        """Return the rows of the next step that may sample drafts.

        Each sequence that runs has a row, and each that may start; none may while the first of
        those that wait finds no place.
        """
        num_seqs = self._queues.num_running_seqs
        if not self.nothing_starts:
            for group in islice(self._queues.waiting, self._max_num_seqs - num_seqs):
                num_seqs += group.num_seqs
        return max_sampled_rows(self._max_num_seqs) - min(num_seqs, self._max_num_seqs)

    def _plan(self, budget: int) -> dict[int, int]:
        """Return the slots that sequences should have in the next step, at most so many in all."""
        planned = self.speculation.plan(
            [
                sequence_id
                for group in self._queues.running
                if group.beam_search is None
                for sequence_id in group.sequences
            ],
            max(0, min(self._max_num_batched_tokens - self._queues.num_running_seqs, budget)),
        )
        if planned:
            self._num_reserved = self._num_blocks_to_come()
        return planned

    def _num_blocks_to_come(self) -> int:
        """Return the most blocks that running groups can need in this step and the next.

        Each sequence may be copied a block that it shares, and one that is yet to be forked may
        need a table of its own.
        """
        num_blocks = 0
        for group in self._queues.running:
            for sequence in group.sequences.values():
                end = len(sequence.token_ids) + sequence.num_pending_tokens + 1
                num_blocks += self._blocks.num_blocks_for(end) + 1
                if sequence.status is SequenceStatus.RUNNING:
                    num_blocks -= len(self._blocks.block_table(sequence.sequence_id))
        return num_blocks

    def num_slots(
        self, group: SequenceGroup, sequence: Sequence, end: int, step: StepBuilder
    ) -> int:
        """Return how many slots a sequence gets behind its first `end` tokens.

        Args:
            group: of the sequence.
            sequence: is computed in this step.
            end: its tokens, with the one that is pending.
            step: is put together.
        """
        num_planned = step.planned_slots.get(sequence.sequence_id, 0)
        num_left = end - sequence.num_computed_tokens
        # Not behind a prompt, for whose last token others of the group may wait.
        if not num_planned or num_left > 1 or end <= sequence.num_prompt_tokens:
            return 0
        num_slots = min(
            num_planned,
            group.max_num_tokens - 1 - end,
            step.token_budget - num_left,
            step.draft_budget,
        )
        num_blocks = self._blocks.num_blocks_for(end + num_slots)
        num_more = num_blocks - len(self._blocks.block_table(sequence.sequence_id))
        # No group is preempted for a draft.
        num_spare = self._blocks.num_free_blocks - self._num_reserved
        return num_slots if num_more <= max(0, num_spare) else 0

    def observe(self, result: StepResult, running: Container[int]) -> None:
        """Record what became of the drafts of a step, which is no longer in flight.

        Args:
            result: of the step.
            running: the sequences that still run.
        """
        if not result.num_draft_tokens:
            return
        slots, self.in_flight = self.in_flight, {}
        num_tokens = Counter(result.sequence_ids)
        self.speculation.observe_drafts(
            (sequence_id, num_drafted, max(0, num_tokens[sequence_id] - 1))
            for sequence_id, num_drafted in zip(slots, result.num_draft_tokens, strict=True)
            if sequence_id in running
        )
