"""The mirror of the live sequences: the orders of each step change it, and nothing else does."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.contract.errors import InvalidRequestError
from quire.contract.steps import MirroredSequence, SchedulerOutputs, SequenceState
from worker_svc.arrays import IntArray
from worker_svc.steps.batch import Batch, gather_batch
from worker_svc.steps.contents import CacheContents
from worker_svc.steps.drafts import Drafter, one_by_one, prompt_lookup, rows_that_count
from worker_svc.steps.rows import SequenceRows

# Steps with marks of their own; many more than can be under way.
MAX_MARKS = 2**20


class SequenceMirror:
    """Tokens, block tables and sampling parameters of the sequences this worker holds.

    Args:
        block_size: tokens of a block.
        num_blocks: block ids are in [0, num_blocks).
        max_model_len: limit on the tokens of a sequence.
        vocab_size: token ids are in [0, vocab_size).
        eos_token_ids: end-of-text ids of the model.
        num_rows: sequences to have room for from the beginning; None for a few.

    Attributes:
        held: the sequences by row; other objects only read it.
        drafter: drafts for sequences; prompt lookup unless another is set.
        contents: what full blocks hold, those of live sequences as of the last `settle`.
    """

    def __init__(
        self,
        block_size: int,
        num_blocks: int,
        max_model_len: int,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        num_rows: int | None = None,
    ) -> None:
        self._cache_blocks = num_blocks
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._row_of: dict[int, int] = {}
        self._salt_of_row: dict[int, bytes] = {}
        self._num_steps = 0
        self.contents = CacheContents(block_size)
        self.drafter: Drafter = one_by_one(prompt_lookup)
        # One token more than the limit: a step sent ahead may sample past a sequence's end.
        max_num_tokens = max_model_len + 1
        rows = () if num_rows is None else (num_rows,)
        self.held = SequenceRows(block_size, max_num_tokens, eos_token_ids, *rows)

    def sequences(self) -> list[MirroredSequence]:
        """Return a summary of every sequence held."""
        held = self.held
        return [
            MirroredSequence(
                sequence_id=sequence_id,
                num_tokens=int(held.num_tokens[row]),
                num_computed_tokens=int(held.num_computed[row]),
                block_ids=tuple(held.block_tables[row, : held.num_blocks[row]].tolist()),
                sequence_index=held.sampling.sequence_index(row),
            )
            for sequence_id, row in self._row_of.items()
        ]

    def token_ids(self, sequence_id: int) -> npt.NDArray[np.int32]:
        """Return [num_tokens] int32 tokens of a sequence; marks stand for those not settled."""
        row = self._row_of[sequence_id]
        return self.held.token_ids[row, : self.held.num_tokens[row]]

    def touch_contents(self) -> None:
        """Count the contents of every sequence as used last.

        Mutates: the order of contents.
        """
        for row in self._row_of.values():
            self._touch(row)

    def clear(self) -> None:
        """Forget every sequence, but not what blocks hold."""
        self.touch_contents()
        self._row_of.clear()
        self._salt_of_row.clear()
        self.held.clear()

    def discard(self, outputs: SchedulerOutputs) -> None:
        """Forget every sequence: a step has failed, wherever that was.

        Mutates: contents, which keeps what steps before have computed, but for blocks that this
        one has moved, or would have.
        """
        self.clear()
        self.contents.discard(outputs)

    def check_invariants(self) -> None:
        """Check that each row is free or held by one sequence, within its bounds."""
        held = self.held
        rows = set(self._row_of.values())
        assert sorted([*self._row_of.values(), *held.free]) == list(range(len(held)))
        assert rows.issuperset(held.sampling.options)
        for row in rows:
            assert 0 <= held.num_computed[row] <= held.num_tokens[row] <= self._max_model_len + 1
            assert held.num_computed[row] <= held.num_blocks[row] * held.block_size

    def apply(self, outputs: SchedulerOutputs) -> Batch:
        """Apply the orders of a step and return its batch, as good as computed.

        Each sequence that samples gains a token, for which the batch's mark stands until `settle`.
        Where there are drafts they stand instead; then `settle` must come before the next step.

        Mutates: the sequences that the step names.

        Raises:
            InvalidRequestError: the orders do not fit what is held. After any error nothing but
                `discard` may follow.
        """
        self._change_sequences(outputs)
        held, sequence_ids = self.held, tuple(outputs.sequence_ids)
        rows, counts = self._rows(sequence_ids), _array(outputs.num_scheduled_tokens)
        self._append_blocks(rows, _array(outputs.num_new_blocks), _array(outputs.new_block_ids))
        num_drafts, num_drafted = self._draft(sequence_ids, rows, counts, outputs.num_draft_slots)
        failed_ids: tuple[int, ...] = ()
        failed = held.has_failed[rows]
        if failed.any():
            # The scheduler sent this step before it knew of the failure.
            failed_ids = tuple(np.array(sequence_ids)[failed].tolist())
            sequence_ids = tuple(np.array(sequence_ids)[~failed].tolist())
            rows, counts, num_drafts = rows[~failed], counts[~failed], num_drafts[~failed]
        self._check_batch(sequence_ids, rows, counts)
        self._num_steps += 1
        mark = -1 - self._num_steps % MAX_MARKS
        batch = gather_batch(
            held,
            sequence_ids,
            rows,
            counts,
            failed_ids=failed_ids,
            mark=mark,
            num_drafts=num_drafts if any(num_drafted) else None,
            num_drafted=num_drafted,
        )
        held.num_computed[rows] += counts
        sampling_rows, positions = batch.sampling_rows, batch.sampled_positions
        if batch.expected_ids is not None:
            has_none = ~np.isin(sampling_rows, rows[num_drafts > 0])
            sampling_rows, positions = sampling_rows[has_none], positions[has_none]
        held.token_ids[sampling_rows, positions] = mark
        held.num_tokens[batch.sampling_rows] += 1
        return batch

    def settle(
        self,
        batch: Batch,
        token_ids: IntArray,
        ok: npt.NDArray[np.bool_],
        failed_ids: Sequence[int] = (),
    ) -> None:
        """Write the tokens of a batch in the place of its mark, where this still stands.

        Where there were drafts, all tokens are written that count. Blocks that have become full
        are recorded, each once.

        Mutates: token_ids and has_failed of the rows; with drafts num_tokens and num_computed, too;
        contents.

        Args:
            batch: a batch that `apply` returned.
            token_ids: [num_sampling] int64.
            ok: [num_sampling] False marks a sequence that failed: its token means nothing, and it
                is not computed again.
            failed_ids: sequences that failed and sample nothing.
        """
        held, rows, positions = self.held, batch.sampling_rows, batch.sampled_positions
        # A row may hold another sequence by now: with known tokens, or with the mark of a later
        # step at the same position.
        waits = held.token_ids[rows, positions] == batch.mark
        if batch.expected_ids is not None:
            # No other step was applied since.
            waits = rows_that_count(batch.expected_ids, token_ids, ok)
            held.num_tokens[rows[waits]] = positions[waits] + 1
            held.num_computed[rows[waits]] = positions[waits]
            computed = held.num_draft_computed
            computed[rows] = np.minimum(computed[rows], held.num_computed[rows])
        if not waits.all():
            rows, positions = rows[waits], positions[waits]
            token_ids, ok = token_ids[waits], ok[waits]
        held.token_ids[rows, positions] = token_ids
        if not ok.all():
            held.has_failed[rows[~ok]] = True
        for sequence_id in failed_ids:
            if (row := self._row_of.get(sequence_id)) is not None:
                held.has_failed[row] = True
        self._record(batch)

    def _record(self, batch: Batch) -> None:
        """Record the blocks that are full with a batch, of sequences that are still held."""
        held, rows = self.held, batch.rows
        # A later step may have been applied, which is under way.
        num_full = np.minimum(held.num_computed[rows], batch.seq_lens) // held.block_size
        has_more = (num_full > held.num_recorded[rows]) & ~held.has_failed[rows]
        for index in np.flatnonzero(has_more).tolist():
            row, num_blocks = int(rows[index]), int(num_full[index])
            if self._row_of.get(batch.sequence_ids[index]) != row:
                continue  # it holds another sequence by now
            first = int(held.num_recorded[row])
            token_ids = held.token_ids[row, : num_blocks * held.block_size]
            new_ids = token_ids[first * held.block_size :]
            assert not (new_ids < 0).any(), "the tokens of full blocks are settled"
            salt = self._salt_of_row.get(row, b"")
            self.contents.record(held.block_tables[row, :num_blocks], token_ids, first, salt)
            held.num_recorded[row] = num_blocks

    def _touch(self, row: int) -> None:
        self.contents.touch(self.held.block_tables[row, : self.held.num_recorded[row]])

    def _draft(
        self,
        sequence_ids: tuple[int, ...],
        rows: IntArray,
        counts: IntArray,
        num_slots: Sequence[int],
    ) -> tuple[IntArray, tuple[int, ...]]:
        """Write drafts behind the tokens of those sequences that have slots for them.

        Mutates: token_ids.

        Returns:
            num_drafts and num_drafted, as of `gather_batch`.

        Raises:
            InvalidRequestError: a sequence with slots does not sample, or slots do not fit it.
        """
        num_drafts = np.zeros_like(rows)
        if not num_slots:
            return num_drafts, ()
        if len(num_slots) != len(rows):
            raise InvalidRequestError(
                "num_draft_slots", f"length must be {len(rows)}, got {len(num_slots)}"
            )
        held, places = self.held, np.flatnonzero(num_slots)
        drafting, slots = rows[places], _array(num_slots)[places]
        ends, sizes = held.num_tokens[drafting], held.num_blocks[drafting] * held.block_size
        room = np.minimum(sizes, self._max_model_len - 1) - ends
        bad = (held.num_computed[drafting] + counts[places] != ends) | (slots > room)
        if bad.any():
            index = int(bad.argmax())
            raise InvalidRequestError(
                "num_draft_slots",
                f"must be at most {room[index]}, for sequence {sequence_ids[places[index]]} that "
                f"samples, got {slots[index]}",
            )
        works = ~held.has_failed[drafting]
        num_drafts[places[works]] = self.drafter(held, drafting[works], slots[works])
        return num_drafts, tuple(num_drafts[places].tolist())

    def _change_sequences(self, outputs: SchedulerOutputs) -> None:
        """Fork, change, release and add the sequences that a step names."""
        for parent_id, child_id in outputs.forks:
            self._fork(parent_id, child_id)
        if outputs.chosen_tokens:
            sequence_ids, token_ids = zip(*outputs.chosen_tokens, strict=True)
            rows, chosen = self._rows(sequence_ids), np.array(token_ids)
            self._check_token_ids("chosen_token_ids", chosen)
            self.held.token_ids[rows, self.held.num_tokens[rows] - 1] = chosen
        for sequence_id in outputs.released_sequence_ids:
            if sequence_id not in self._row_of:
                problem = f"must be held by this worker, got {sequence_id}"
                raise InvalidRequestError("released_sequence_ids", problem)
            row = self._row_of.pop(sequence_id)
            self._touch(row)
            self._salt_of_row.pop(row, None)
            self.held.release(row)
        # Before blocks get new owners: what is swapped out is still there.
        self.contents.move(outputs)
        for state in outputs.new_sequences:
            self._add(state)
        for sequence_id, place, block_id in outputs.replaced_blocks:
            self._replace_block(sequence_id, place, block_id)

    def _add(self, state: SequenceState) -> None:
        if state.sequence_id in self._row_of:
            problem = f"must not be held by this worker, got {state.sequence_id}"
            raise InvalidRequestError("new_sequences", problem)
        num_tokens, num_blocks = len(state.token_ids), len(state.block_ids)
        if not 1 <= num_tokens <= self._max_model_len:
            raise InvalidRequestError(
                "token_ids", f"length must be in [1, {self._max_model_len}], got {num_tokens}"
            )
        self._check_token_ids("token_ids", _array(state.token_ids))
        if not 0 <= state.num_computed_tokens < num_tokens:
            raise InvalidRequestError(
                "num_computed_tokens",
                f"must be in [0, {num_tokens}), got {state.num_computed_tokens}",
            )
        if not 0 <= state.num_prompt_tokens <= num_tokens:
            raise InvalidRequestError(
                "num_prompt_tokens",
                f"must be in [0, {num_tokens}], got {state.num_prompt_tokens}",
            )
        if num_blocks > self.held.max_blocks:
            raise InvalidRequestError(
                "block_ids", f"length must be at most {self.held.max_blocks}, got {num_blocks}"
            )
        self._check_blocks("block_ids", _array(state.block_ids))
        self.contents.drop(state.block_ids[state.num_computed_tokens // self.held.block_size :])
        row = self._row_of[state.sequence_id] = self.held.add(state)
        if state.cache_salt:
            self._salt_of_row[row] = state.cache_salt

    def _fork(self, parent_id: int, child_id: int) -> None:
        if parent_id not in self._row_of or child_id in self._row_of:
            problem = "parent must be held by this worker and child must not"
            raise InvalidRequestError("forks", f"{problem}, got {parent_id} and {child_id}")
        parent = self._row_of[parent_id]
        child = self._row_of[child_id] = self.held.copy(parent)
        if parent in self._salt_of_row:
            self._salt_of_row[child] = self._salt_of_row[parent]

    def _replace_block(self, sequence_id: int, place: int, block_id: int) -> None:
        row = self._row_of.get(sequence_id)
        if row is None or not 0 <= place < self.held.num_blocks[row]:
            raise InvalidRequestError(
                "replaced_places",
                f"must be a place in the block table of sequence {sequence_id}, got {place}",
            )
        if not 0 <= block_id < self._cache_blocks:
            raise InvalidRequestError(
                "replaced_block_ids", f"must be below {self._cache_blocks}, got {block_id}"
            )
        self.held.replace_block(row, place, block_id)

    def _rows(self, sequence_ids: tuple[int, ...]) -> IntArray:
        try:
            rows = [self._row_of[sequence_id] for sequence_id in sequence_ids]
        except KeyError as error:
            raise InvalidRequestError(
                "sequence_ids", f"must be held by this worker, got {error.args[0]}"
            ) from error
        if len(set(rows)) != len(rows):
            raise InvalidRequestError("sequence_ids", "must be distinct, got one twice")
        return np.array(rows, np.int64)

    def _append_blocks(self, rows: IntArray, counts: IntArray, block_ids: IntArray) -> None:
        if len(counts) != len(rows) or counts.sum() != len(block_ids):
            raise InvalidRequestError(
                "num_new_blocks",
                f"sum must be the length of new_block_ids, {len(block_ids)}, got {counts.sum()}",
            )
        if len(block_ids) == 0:
            return
        self._check_blocks("new_block_ids", block_ids)
        self.contents.drop(block_ids.tolist())
        longest = (self.held.num_blocks[rows] + counts).max()
        if longest > self.held.max_blocks:
            raise InvalidRequestError(
                "num_new_blocks",
                f"block tables must hold at most {self.held.max_blocks} blocks, got {longest}",
            )
        self.held.append_blocks(rows, counts, block_ids)

    def _check_token_ids(self, field: str, token_ids: IntArray) -> None:
        largest, limit = int(token_ids.max()), self._vocab_size
        if largest >= limit:
            problem = f"must be below {limit}, the vocabulary size, got {largest}"
            raise InvalidRequestError(field, problem)

    def _check_blocks(self, field: str, block_ids: IntArray) -> None:
        if block_ids.size > 0 and block_ids.max() >= self._cache_blocks:
            raise InvalidRequestError(
                field, f"must be below {self._cache_blocks}, got {block_ids.max()}"
            )

    def _check_batch(self, sequence_ids: tuple[int, ...], rows: IntArray, counts: IntArray) -> None:
        if len(counts) != len(rows):
            problem = f"length must be {len(rows)}, got {len(counts)}"
            raise InvalidRequestError("num_scheduled_tokens", problem)
        held = self.held
        room = np.minimum(held.num_tokens[rows], held.num_blocks[rows] * held.block_size)
        end = held.num_computed[rows] + counts
        bad = (counts < 1) | (end > np.minimum(room, self._max_model_len))
        if bad.any():
            index = int(bad.argmax())
            row = rows[index]
            raise InvalidRequestError(
                "num_scheduled_tokens",
                f"must be at least 1 and fit sequence {sequence_ids[index]}, which has "
                f"{held.num_tokens[row]} tokens, {held.num_computed[row]} of them computed, and "
                f"{held.num_blocks[row]} blocks of {held.block_size}; got {counts[index]}",
            )


def _array(numbers: Sequence[int]) -> IntArray:
    return np.array(numbers, np.int64)
