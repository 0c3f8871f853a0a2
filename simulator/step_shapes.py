"""What each step computes, from the scheduler's orders: with lengths as workers keep them."""

import numpy as np

from quire.contract.steps import SchedulerOutputs
from simulator.cost_model import StepShape


class StepShapes:
    """Keeps the lengths of a scheduler's sequences, as workers do, and measures its steps."""

    def __init__(self) -> None:
        # By sequence id: tokens in the cache, and tokens that are known. Decoding sequences have
        # one more of the latter; ids are never used again, so these only grow.
        self._computed = np.zeros(1024, np.int64)
        self._known = np.zeros(1024, np.int64)
        # Most steps only decode the sequences of the step before. They are counted here, and added
        # to the lengths when another kind of step comes.
        self._decoding: list[int] = []
        self._num_contexts = 0
        self._num_decodes = 0

    def measure(self, outputs: SchedulerOutputs) -> tuple[StepShape, list[int]]:
        """Return the shape of a step, and which of its sequences sample a token in it.

        Mutates: the lengths, to those after the step.
        """
        num_moved = len(outputs.blocks_to_swap_out) + len(outputs.blocks_to_swap_in)
        if not outputs.new_sequences and outputs.sequence_ids == self._decoding:
            num_sequences = len(self._decoding)
            self._num_decodes += 1
            self._num_contexts += num_sequences
            shape = StepShape(num_sequences, num_sequences, self._num_contexts, 0, num_moved)
            return shape, outputs.sequence_ids
        self._settle()
        for state in outputs.new_sequences:
            self._make_room(state.sequence_id)
            self._computed[state.sequence_id] = state.num_computed_tokens
            self._known[state.sequence_id] = len(state.token_ids)
        ids = np.array(outputs.sequence_ids)
        scheduled = np.array(outputs.num_scheduled_tokens)
        before = self._computed[ids]
        after = before + scheduled
        self._computed[ids] = after
        known = self._known[ids]
        num_pairs = 0
        num_tokens = int(scheduled.sum())
        sampling = outputs.sequence_ids
        if num_tokens > len(sampling):
            # Query i of a chunk attends to all tokens before it and to itself.
            pairs = scheduled * before + scheduled * (scheduled + 1) // 2
            num_pairs = int(pairs[scheduled > 1].sum())
        samples = after >= known
        if not samples.all():
            sampling = ids[samples].tolist()
        self._known[ids] = np.where(samples, after + 1, known)
        self._num_contexts = int(after.sum())
        # If all of them have sampled, each has one token to compute next.
        self._decoding = sampling if len(sampling) == len(ids) else []
        shape = StepShape(num_tokens, len(ids), self._num_contexts, num_pairs, num_moved)
        return shape, sampling

    def _settle(self) -> None:
        """Add the decoding steps that were only counted to the lengths."""
        if self._num_decodes:
            self._computed[self._decoding] += self._num_decodes
            self._known[self._decoding] += self._num_decodes
            self._num_decodes = 0

    def _make_room(self, sequence_id: int) -> None:
        if sequence_id >= len(self._computed):
            more = np.zeros(max(len(self._computed), sequence_id), np.int64)
            self._computed = np.concatenate((self._computed, more))
            self._known = np.concatenate((self._known, more))
