"""The mirror of live sequences: what the orders of each step change, and nothing else."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from quire.contract.errors import InvalidRequestError
from worker_svc.sampling.options import RowOptions
from worker_svc.sampling.sampler import SamplingTable
from worker_svc.steps.batch import PromptPart, StepBatch, gather_batch
from worker_svc.steps.rows import SequenceRows
from worker_svc.steps.step import IntArray, MirroredSequence, SchedulerOutputs, SequenceState

# Steps whose tokens have marks of their own; far more than can be under way.
MAX_MARKS = 2**20


class SequenceMirror:
    """Tokens, block tables and sampling parameters of the sequences this worker holds.

    Args:
        block_size: tokens of a block.
        num_blocks: block ids are in [0, num_blocks).
        max_model_len: limit of a sequence.
        vocab_size: token ids are in [0, vocab_size).
        padded_rows: returns how many rows to compute for a number of tokens.
        eos_token_ids: end-of-text ids of the model.
        num_rows: sequences to have room for from the beginning; None for a few.
    """

    def __init__(
        self,
        block_size: int,
        num_blocks: int,
        max_model_len: int,
        vocab_size: int,
        padded_rows: Callable[[int], int],
        eos_token_ids: tuple[int, ...],
        num_rows: int | None = None,
    ) -> None:
        self._eos_token_ids = eos_token_ids
        self._cache_blocks = num_blocks
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._padded_rows = padded_rows
        self._row_of: dict[int, int] = {}
        self._num_steps = 0
        # Of the rows that have any.
        self._options: dict[int, RowOptions] = {}
        # One token more than the limit: a step sent ahead may sample past a sequence's end.
        max_num_tokens = max_model_len + 1
        self._held = (
            SequenceRows(block_size, max_num_tokens)
            if num_rows is None
            else SequenceRows(block_size, max_num_tokens, num_rows)
        )

    @property
    def sampling(self) -> SamplingTable:
        """Sampling parameters of the sequences held."""
        return self._held.sampling

    @property
    def held(self) -> SequenceRows:
        """The rows; others read them."""
        return self._held

    def sequences(self) -> list[MirroredSequence]:
        """Return what is known of every sequence held."""
        held = self._held
        return [
            MirroredSequence(
                sequence_id=sequence_id,
                num_tokens=int(held.num_tokens[row]),
                num_computed_tokens=int(held.num_computed[row]),
                block_ids=tuple(held.block_tables[row, : held.num_blocks[row]].tolist()),
            )
            for sequence_id, row in self._row_of.items()
        ]

    def clear(self) -> None:
        """Forget every sequence."""
        self._row_of.clear()
        self._options.clear()
        self._held.clear()

    def check_invariants(self) -> None:
        """Check that each row is free or held by one sequence, within its bounds."""
        held = self._held
        assert sorted([*self._row_of.values(), *held.free]) == list(range(len(held)))
        for row in self._row_of.values():
            assert 0 <= held.num_computed[row] <= held.num_tokens[row] <= self._max_model_len + 1
            assert held.num_computed[row] <= held.num_blocks[row] * held.block_size

    def apply(self, outputs: SchedulerOutputs) -> None:
        """Fork, change, release and add the sequences that a step names.

        Raises:
            InvalidRequestError: an unknown id, one held already, or a bad sequence.
        """
        for parent_id, child_id in outputs.forks.tolist():
            self._fork(parent_id, child_id)
        if len(outputs.chosen_tokens) > 0:
            rows = self._rows(tuple(outputs.chosen_tokens[:, 0].tolist()))
            chosen = outputs.chosen_tokens[:, 1]
            self._check_token_ids("chosen_token_ids", chosen)
            self._held.token_ids[rows, self._held.num_tokens[rows] - 1] = chosen
        for sequence_id in outputs.released_sequence_ids:
            row = self._row_of.pop(sequence_id, None)
            if row is None:
                raise InvalidRequestError(
                    "released_sequence_ids", f"sequence {sequence_id} is not held here"
                )
            self._options.pop(row, None)
            self._held.release(row)
        for state in outputs.new_sequences:
            self._add(state)
        for sequence_id, place, block_id in outputs.replaced_blocks.tolist():
            self._replace_block(sequence_id, place, block_id)

    def build_batch(self, outputs: SchedulerOutputs) -> StepBatch:
        """Append the step's blocks to the tables and gather its batch.

        Raises:
            InvalidRequestError: the orders do not fit what is held.
        """
        rows = self._rows(outputs.sequence_ids)
        self._append_blocks(rows, outputs.num_new_blocks, outputs.new_block_ids)
        sequence_ids, counts = outputs.sequence_ids, outputs.num_scheduled_tokens
        failed_ids: tuple[int, ...] = ()
        failed = self._held.has_failed[rows]
        if failed.any():
            # Sent ahead before the failure was known there.
            failed_ids = tuple(np.array(sequence_ids)[failed].tolist())
            sequence_ids = tuple(np.array(sequence_ids)[~failed].tolist())
            rows, counts = rows[~failed], counts[~failed]
        self._check_batch(sequence_ids, rows, counts)
        batch = gather_batch(self._held, sequence_ids, rows, counts, self._padded_rows)
        if failed_ids or self._options:
            parts = self._prompt_parts(sequence_ids, batch)
            batch = replace(batch, failed_ids=failed_ids, prompt_parts=parts)
        return batch

    def _prompt_parts(
        self, sequence_ids: tuple[int, ...], batch: StepBatch
    ) -> tuple[PromptPart, ...]:
        parts = []
        starts, counts = batch.query_start_loc.tolist(), batch.num_scheduled_tokens.tolist()
        for index, (sequence_id, row) in enumerate(
            zip(sequence_ids, batch.rows.tolist(), strict=True)
        ):
            options = self._options.get(row)
            if options is None or options.num_prompt_logprobs is None:
                continue
            # The row of a token predicts the next one.
            first = int(self._held.num_computed[row]) + 1
            end = min(first + counts[index], options.num_prompt_tokens)
            if first < end:
                parts.append(
                    PromptPart(
                        sequence_id,
                        first,
                        tuple(self._held.token_ids[row, first:end].tolist()),
                        range(starts[index], starts[index] + end - first),
                        options.num_prompt_logprobs,
                    )
                )
        return tuple(parts)

    def sampling_options(self, batch: StepBatch) -> list[tuple[int, RowOptions]]:
        """Return (index among the sampling sequences, what it asks for) of those that ask."""
        if not self._options:
            return []
        rows = enumerate(batch.sampling_rows.tolist())
        return [(index, self._options[row]) for index, row in rows if row in self._options]

    def token_ids(self, row: int) -> npt.NDArray[np.int32]:
        """Return [num_tokens] the tokens of the sequence in a row; a view, not a copy.

        Those of steps that are not settled are negative.
        """
        return self._held.token_ids[row, : self._held.num_tokens[row]]

    def advance(self, batch: StepBatch) -> int:
        """Record that a batch is computed, and that its sequences gain a token yet unknown.

        Args:
            batch: of the last `build_batch`.

        Returns:
            The mark that stands in the place of these tokens until they are settled.
        """
        held, rows = self._held, batch.sampling_rows
        self._num_steps += 1
        mark = -1 - self._num_steps % MAX_MARKS
        held.num_computed[batch.rows] += batch.num_scheduled_tokens
        held.token_ids[rows, batch.sampled_positions] = mark
        held.num_tokens[rows] += 1
        return mark

    def settle(
        self, batch: StepBatch, mark: int, token_ids: IntArray, ok: npt.NDArray[np.bool_]
    ) -> None:
        """Record what a batch has sampled, of the sequences that still wait for it.

        Args:
            batch: that `advance` was told of.
            mark: that it returned.
            token_ids: [num_sampling].
            ok: [num_sampling] False marks a sequence that failed: its token means nothing, and it
                is not computed again.
        """
        held, rows, positions = self._held, batch.sampling_rows, batch.sampled_positions
        # A sequence may have been released since, and its row be another's: of known tokens, or one
        # that waits at the same position for a later step.
        waits = held.token_ids[rows, positions] == mark
        if not waits.all():
            rows, positions = rows[waits], positions[waits]
            token_ids, ok = token_ids[waits], ok[waits]
        held.token_ids[rows, positions] = token_ids
        if not ok.all():
            held.has_failed[rows[~ok]] = True

    def _add(self, state: SequenceState) -> None:
        if state.sequence_id in self._row_of:
            raise InvalidRequestError(
                "new_sequences", f"sequence {state.sequence_id} is held already"
            )
        num_tokens, num_blocks = len(state.token_ids), len(state.block_ids)
        if not 1 <= num_tokens <= self._max_model_len:
            raise InvalidRequestError(
                "token_ids", f"length must be in [1, {self._max_model_len}], got {num_tokens}"
            )
        self._check_token_ids("token_ids", state.token_ids)
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
        if num_blocks > self._held.max_blocks:
            raise InvalidRequestError(
                "block_ids", f"at most {self._held.max_blocks} blocks, got {num_blocks}"
            )
        self._check_blocks("block_ids", state.block_ids)
        row = self._held.add(state)
        options = RowOptions.of(state, self._eos_token_ids)
        if options is not None:
            self._options[row] = options
        self._row_of[state.sequence_id] = row

    def _fork(self, parent_id: int, child_id: int) -> None:
        if parent_id not in self._row_of or child_id in self._row_of:
            raise InvalidRequestError(
                "forks", f"sequence {parent_id} must be held here, and {child_id} must not"
            )
        parent = self._row_of[parent_id]
        child = self._row_of[child_id] = self._held.copy(parent)
        if parent in self._options:
            self._options[child] = self._options[parent]

    def _replace_block(self, sequence_id: int, place: int, block_id: int) -> None:
        row = self._row_of.get(sequence_id)
        if row is None or not 0 <= place < self._held.num_blocks[row]:
            raise InvalidRequestError(
                "replaced_places", f"sequence {sequence_id} has no block at place {place}"
            )
        if not 0 <= block_id < self._cache_blocks:
            raise InvalidRequestError(
                "replaced_block_ids", f"must be below {self._cache_blocks}, got {block_id}"
            )
        self._held.replace_block(row, place, block_id)

    def _rows(self, sequence_ids: tuple[int, ...]) -> IntArray:
        try:
            rows = [self._row_of[sequence_id] for sequence_id in sequence_ids]
        except KeyError as error:
            raise InvalidRequestError(
                "sequence_ids", f"sequence {error.args[0]} is not held here"
            ) from error
        if len(set(rows)) != len(rows):
            raise InvalidRequestError("sequence_ids", "a sequence is scheduled twice")
        return np.array(rows, np.int64)

    def _append_blocks(self, rows: IntArray, counts: IntArray, block_ids: IntArray) -> None:
        if len(counts) != len(rows) or counts.sum() != len(block_ids):
            raise InvalidRequestError(
                "num_new_blocks", "must add up to the length of new_block_ids"
            )
        if len(block_ids) == 0:
            return
        self._check_blocks("new_block_ids", block_ids)
        longest = (self._held.num_blocks[rows] + counts).max()
        if longest > self._held.max_blocks:
            raise InvalidRequestError(
                "num_new_blocks",
                f"a table may hold {self._held.max_blocks} blocks, got {longest}",
            )
        self._held.append_blocks(rows, counts, block_ids)

    def _check_token_ids(self, field: str, token_ids: IntArray) -> None:
        largest = int(token_ids.max())
        if largest >= self._vocab_size:
            raise InvalidRequestError(
                field, f"must be below the vocabulary size {self._vocab_size}, got {largest}"
            )

    def _check_blocks(self, field: str, block_ids: IntArray) -> None:
        if block_ids.size > 0 and block_ids.max() >= self._cache_blocks:
            raise InvalidRequestError(
                field, f"must be below {self._cache_blocks}, got {block_ids.max()}"
            )

    def _check_batch(self, sequence_ids: tuple[int, ...], rows: IntArray, counts: IntArray) -> None:
        if len(counts) != len(rows):
            raise InvalidRequestError(
                "num_scheduled_tokens", f"must have {len(rows)} entries, got {len(counts)}"
            )
        held = self._held
        room = np.minimum(held.num_tokens[rows], held.num_blocks[rows] * held.block_size)
        end = held.num_computed[rows] + counts
        bad = (counts < 1) | (end > np.minimum(room, self._max_model_len))
        if bad.any():
            index = int(bad.argmax())
            row = rows[index]
            raise InvalidRequestError(
                "num_scheduled_tokens",
                f"sequence {sequence_ids[index]} has {held.num_tokens[row]} tokens, "
                f"{held.num_computed[row]} of them computed, and {held.num_blocks[row]} blocks "
                f"of {held.block_size}; it cannot compute {counts[index]} more",
            )
