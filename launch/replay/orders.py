"""Checks recorded orders alone: whether they fit what the sequences of a worker were then."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, islice

import numpy as np
import numpy.typing as npt

from launch.replay.epochs import RecordedEpoch, Step
from quire.contract.errors import InvalidRequestError
from quire.contract.steps import SchedulerOutputs, StepResult
from worker_svc.arrays import IntArray
from worker_svc.steps.batch import Batch
from worker_svc.steps.mirror import SequenceMirror
from worker_svc.steps.rows import SequenceRows


class OrderCheck:
    """Follows the orders of an epoch as a worker does, which refuses those that do not fit.

    Beyond what a worker refuses, a block that is written must be of one sequence only. Where the
    beginning is gone, sequences are followed from the step that brings them.

    Args:
        epoch: the epoch.

    Attributes:
        num_steps: checked so far.
    """

    def __init__(self, epoch: RecordedEpoch) -> None:
        header, model = epoch.header, epoch.header.loaded.model
        self._epoch = epoch
        self._block_size = header.cache.options.block_size
        self._limits = header.cache.num_blocks, header.host_cache.num_blocks
        self._mirror = SequenceMirror(
            self._block_size,
            header.cache.num_blocks,
            model.max_model_len,
            model.vocab_size,
            model.eos_token_ids,
        )
        self._mirror.drafter = _draft_zeros
        self._known: set[int] = set()
        self.num_steps = 0

    def run(self, report: Callable[[str], None]) -> str:
        """Check every step; return the first that does not fit, and why; empty if there is none.

        Args:
            report: called with a line about what is missing.
        """
        for step in self._epoch.steps(report):
            try:
                self._check(step)
            except InvalidRequestError as error:
                return (
                    f"step {step[0].step_id} of epoch {self._epoch.header.epoch}: {error.message}"
                )
            self.num_steps += 1
        return ""

    def _check(self, step: Step) -> None:
        orders, result = step
        if not self._epoch.has_beginning:
            orders = self._of_known(orders)
        self._check_moves(orders)
        batch = self._mirror.apply(orders)
        self._check_owners(batch, orders)
        self._mirror.settle(batch, *self._outcome(batch, result))

    def _of_known(self, orders: SchedulerOutputs) -> SchedulerOutputs:
        """Return the part of orders that is about sequences which were brought since."""
        known = self._known
        forks = [(parent, child) for parent, child in orders.forks if parent in known]
        known.update(child for _, child in forks)
        chosen = [each for each in orders.chosen_tokens if each[0] in known]
        released = [each for each in orders.released_sequence_ids if each in known]
        known.difference_update(released)
        known.update(state.sequence_id for state in orders.new_sequences)
        places = [i for i, each in enumerate(orders.sequence_ids) if each in known]
        block_ids = iter(orders.new_block_ids)
        new_blocks = [list(islice(block_ids, count)) for count in orders.num_new_blocks]
        slots = orders.num_draft_slots
        return replace(
            orders,
            forks=forks,
            chosen_tokens=chosen,
            released_sequence_ids=released,
            replaced_blocks=[each for each in orders.replaced_blocks if each[0] in known],
            sequence_ids=[orders.sequence_ids[i] for i in places],
            num_scheduled_tokens=[orders.num_scheduled_tokens[i] for i in places],
            num_new_blocks=[orders.num_new_blocks[i] for i in places],
            new_block_ids=list(chain.from_iterable(new_blocks[i] for i in places)),
            num_draft_slots=[slots[i] for i in places] if slots else [],
        )

    def _check_moves(self, orders: SchedulerOutputs) -> None:
        blocks, host_blocks = self._limits
        for field, pairs, limits in (
            ("blocks_to_swap_out", orders.blocks_to_swap_out, (blocks, host_blocks)),
            ("blocks_to_swap_in", orders.blocks_to_swap_in, (host_blocks, blocks)),
            ("blocks_to_copy", orders.blocks_to_copy, (blocks, blocks)),
        ):
            for pair in pairs:
                if pair[0] >= limits[0] or pair[1] >= limits[1]:
                    raise InvalidRequestError(field, f"must be below {limits}, got {pair}")
            targets = [target for _, target in pairs]
            if len(set(targets)) < len(targets):
                raise InvalidRequestError(field, "must be of distinct targets, got one twice")

    def _check_owners(self, batch: Batch, orders: SchedulerOutputs) -> None:
        """Check that what a sequence writes is in no other's table.

        But a sequence that the step brings may begin with blocks that another computes in it.
        """
        size = self._block_size
        begins = {
            each.sequence_id: each.num_computed_tokens // size for each in orders.new_sequences
        }
        tables = {each.sequence_id: each.block_ids for each in self._mirror.sequences()}
        num_owners = Counter(
            chain.from_iterable(table[begins.get(each, 0) :] for each, table in tables.items())
        )
        ends, counts = batch.seq_lens.tolist(), batch.num_scheduled_tokens.tolist()
        for sequence_id, end, count in zip(batch.sequence_ids, ends, counts, strict=True):
            for block_id in tables[sequence_id][(end - count) // size : (end - 1) // size + 1]:
                if num_owners[block_id] > 1:
                    raise InvalidRequestError(
                        "block_ids",
                        f"must be of one sequence where it is written, got block {block_id} of "
                        f"sequence {sequence_id} in the table of another",
                    )

    def _outcome(
        self, batch: Batch, result: StepResult | None
    ) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Return tokens and ok, as of `settle`, that make as many drafts right as were."""
        token_ids = np.zeros(len(batch.sampling_ids), np.int64)
        ok = np.ones(len(token_ids), np.bool_)
        if result is None:
            return token_ids, ok
        got, failed = Counter(result.sequence_ids), set(result.failed_sequence_ids)
        num_rows = Counter(batch.sampling_ids)
        for sequence_id, count in got.items():
            is_followed = self._epoch.has_beginning or sequence_id in self._known
            most = num_rows[sequence_id]
            if is_followed and count > most:
                raise InvalidRequestError(
                    "sequence_ids", f"must have at most {most} tokens of {sequence_id}, got {count}"
                )
        seen: Counter[int] = Counter()
        for row, sequence_id in enumerate(batch.sampling_ids):
            nth, count = seen[sequence_id], got[sequence_id]
            seen[sequence_id] += 1
            if sequence_id in failed:
                ok[row] = nth != count
            elif nth == 0 and not count:
                raise InvalidRequestError(
                    "sequence_ids", f"must have a token of {sequence_id}, which samples, got none"
                )
            else:
                token_ids[row] = nth >= count - 1
        return token_ids, ok


def _draft_zeros(held: SequenceRows, rows: IntArray, num_slots: IntArray) -> IntArray:
    """Draft token 0 in every slot."""
    for row, end, slots in zip(rows, held.num_tokens[rows], num_slots, strict=True):
        held.token_ids[row, end : end + slots] = 0
    return num_slots
