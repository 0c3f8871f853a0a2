"""The mirror of live sequences and the flattened ragged batch built from it.

Sequences occupy rows of arrays that live as long as the cache. A step changes only what its deltas
name, and the batch is gathered from the arrays with a fixed number of numpy calls whatever the
number of sequences: at 64 decoding sequences that is tens of microseconds, where rebuilding lists
of block ids and tokens takes milliseconds.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from quire.errors import InvalidRequestError
from worker_svc.layers.invariant_linear import padded_rows
from worker_svc.row_options import RowOptions
from worker_svc.sampler import SamplingTable
from worker_svc.steps import IntArray, MirroredSequence, SchedulerOutputs, SequenceState

_INITIAL_ROWS = 64


@dataclass(frozen=True, slots=True)
class StepBatch:
    """A ragged batch, tokens of all sequences back to back.

    Rows from `num_tokens` on pad the batch; see `padded_rows`.

    Attributes:
        num_tokens: real rows.
        input_ids: [rows] int64.
        positions: [rows] int64.
        slot_mapping: [num_tokens] int64.
        block_tables: [num_sequences, blocks of the longest] int32.
        seq_lens: [num_sequences] int32.
        query_start_loc: [num_sequences + 1] int32.
        sample_rows: [num_sampling] int64, the batch rows whose logits are needed.
        rows: [num_sequences] rows of the mirror.
        num_scheduled_tokens: [num_sequences].
        sampling_rows: [num_sampling] rows of the mirror of the sequences that sample.
        sampling_ids: [num_sampling] their ids.
        failed_ids: sequences of the batch that failed in an earlier step and were left out.
        prompt_parts: parts of prompts in it whose log-probabilities are wanted.
    """

    num_tokens: int
    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    sample_rows: torch.Tensor
    rows: IntArray
    num_scheduled_tokens: IntArray
    sampling_rows: IntArray
    sampling_ids: tuple[int, ...]
    failed_ids: tuple[int, ...]
    prompt_parts: tuple["PromptPart", ...] = ()


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Tokens of a prompt that rows of a batch predict.

    Attributes:
        sequence_id: whose prompt.
        first_position: index in the prompt of the first of the tokens.
        token_ids: the tokens.
        rows: of the batch, one for each.
        num_top: most probable tokens to report with each.
    """

    sequence_id: int
    first_position: int
    token_ids: tuple[int, ...]
    rows: range
    num_top: int


class SequenceMirror:
    """Tokens, block tables and sampling parameters of the sequences this worker holds.

    Args:
        block_size: tokens of a block.
        num_blocks: block ids are in [0, num_blocks).
        max_model_len: limit of a sequence.
        vocab_size: token ids are in [0, vocab_size).
        dtype: of the model, which decides how batches are padded.
        eos_token_ids: end-of-text ids of the model.
    """

    def __init__(
        self,
        block_size: int,
        num_blocks: int,
        max_model_len: int,
        vocab_size: int,
        dtype: torch.dtype,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._eos_token_ids = eos_token_ids
        self._block_size = block_size
        self._cache_blocks = num_blocks
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._dtype = dtype
        self._row_of: dict[int, int] = {}
        # Of the rows that have any.
        self._options: dict[int, RowOptions] = {}
        self._free_rows = list(range(_INITIAL_ROWS))
        # One column more than the limit: a step sent ahead may sample past a sequence's end.
        self._token_ids = np.zeros((_INITIAL_ROWS, max_model_len + 1), np.int32)
        max_blocks = -(-(max_model_len + 1) // block_size)
        self._block_tables = np.zeros((_INITIAL_ROWS, max_blocks), np.int32)
        self._num_tokens = np.zeros(_INITIAL_ROWS, np.int64)
        self._num_computed = np.zeros(_INITIAL_ROWS, np.int64)
        self._num_blocks = np.zeros(_INITIAL_ROWS, np.int64)
        self._has_failed = np.zeros(_INITIAL_ROWS, np.bool_)
        self.sampling = SamplingTable(_INITIAL_ROWS)

    def sequences(self) -> list[MirroredSequence]:
        """Return what is known of every sequence held."""
        return [
            MirroredSequence(
                sequence_id=sequence_id,
                num_tokens=int(self._num_tokens[row]),
                num_computed_tokens=int(self._num_computed[row]),
                block_ids=tuple(self._block_tables[row, : self._num_blocks[row]].tolist()),
            )
            for sequence_id, row in self._row_of.items()
        ]

    def clear(self) -> None:
        """Forget every sequence."""
        self._row_of.clear()
        self._options.clear()
        self._free_rows = list(range(len(self._num_tokens)))

    def check_invariants(self) -> None:
        """Check that each row is free or held by one sequence, within its bounds."""
        rows = sorted([*self._row_of.values(), *self._free_rows])
        assert rows == list(range(len(self._num_tokens)))
        for row in self._row_of.values():
            assert 0 <= self._num_computed[row] <= self._num_tokens[row] <= self._max_model_len + 1
            assert self._num_computed[row] <= self._num_blocks[row] * self._block_size

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
            self._token_ids[rows, self._num_tokens[rows] - 1] = chosen
        for sequence_id in outputs.released_sequence_ids:
            row = self._row_of.pop(sequence_id, None)
            if row is None:
                raise InvalidRequestError(
                    "released_sequence_ids", f"sequence {sequence_id} is not held here"
                )
            self._options.pop(row, None)
            self._free_rows.append(row)
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
        counts = outputs.num_scheduled_tokens
        sequence_ids = outputs.sequence_ids
        failed_ids: tuple[int, ...] = ()
        failed = self._has_failed[rows]
        if failed.any():
            # Sent ahead before the failure was known there.
            failed_ids = tuple(np.array(sequence_ids)[failed].tolist())
            sequence_ids = tuple(np.array(sequence_ids)[~failed].tolist())
            rows, counts = rows[~failed], counts[~failed]
        computed = self._num_computed[rows]
        seq_lens = computed + counts
        self._check_batch(sequence_ids, rows, counts, seq_lens)

        # Everything below is per token: which sequence, which position, which slot.
        query_start_loc = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(counts, out=query_start_loc[1:])
        num_tokens = int(query_start_loc[-1])
        token_rows = np.repeat(rows, counts)
        positions = np.arange(num_tokens) + np.repeat(computed - query_start_loc[:-1], counts)
        blocks, offsets = np.divmod(positions, self._block_size)
        slots = self._block_tables[token_rows, blocks].astype(np.int64)
        slots *= self._block_size
        slots += offsets
        num_rows = padded_rows(num_tokens, self._dtype) if num_tokens > 0 else 0
        padded_ids = np.zeros(num_rows, np.int64)
        padded_ids[:num_tokens] = self._token_ids[token_rows, positions]
        padded_positions = np.zeros(num_rows, np.int64)
        padded_positions[:num_tokens] = positions

        widest = -(-int(seq_lens.max(initial=0)) // self._block_size)
        samples = seq_lens == self._num_tokens[rows]
        if samples.all():
            sampling_rows, sampling_ids = rows, sequence_ids
        else:
            sampling_rows = rows[samples]
            sampling_ids = tuple(np.array(sequence_ids, np.int64)[samples].tolist())
        return StepBatch(
            num_tokens=num_tokens,
            input_ids=torch.from_numpy(padded_ids),
            positions=torch.from_numpy(padded_positions),
            slot_mapping=torch.from_numpy(slots),
            block_tables=torch.from_numpy(self._block_tables[rows, :widest]),
            seq_lens=torch.from_numpy(seq_lens.astype(np.int32)),
            query_start_loc=torch.from_numpy(query_start_loc),
            sample_rows=torch.from_numpy(query_start_loc[1:][samples].astype(np.int64) - 1),
            rows=rows,
            num_scheduled_tokens=counts,
            sampling_rows=sampling_rows,
            sampling_ids=sampling_ids,
            failed_ids=failed_ids,
            prompt_parts=self._prompt_parts(sequence_ids, rows, counts, query_start_loc),
        )

    def _prompt_parts(
        self,
        sequence_ids: tuple[int, ...],
        rows: IntArray,
        counts: IntArray,
        query_start_loc: npt.NDArray[np.int32],
    ) -> tuple[PromptPart, ...]:
        if not self._options:
            return ()
        parts = []
        for index, (sequence_id, row) in enumerate(zip(sequence_ids, rows.tolist(), strict=True)):
            options = self._options.get(row)
            if options is None or options.num_prompt_logprobs is None:
                continue
            # The row of a token predicts the next one.
            first = int(self._num_computed[row]) + 1
            end = min(first + int(counts[index]), options.num_prompt_tokens)
            if first < end:
                start = int(query_start_loc[index])
                parts.append(
                    PromptPart(
                        sequence_id,
                        first,
                        tuple(self._token_ids[row, first:end].tolist()),
                        range(start, start + end - first),
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
        """Return [num_tokens] the tokens of the sequence in a row; a view, not a copy."""
        tokens: npt.NDArray[np.int32] = self._token_ids[row, : self._num_tokens[row]]
        return tokens

    def sampled_positions(self, batch: StepBatch) -> IntArray:
        """Return [num_sampling] the index in its sequence of each token about to be sampled."""
        return self._num_tokens[batch.sampling_rows]

    def commit(self, batch: StepBatch, token_ids: IntArray, ok: npt.NDArray[np.bool_]) -> None:
        """Record that a batch was computed and what it sampled.

        Args:
            batch: of the last `build_batch`.
            token_ids: [num_sampling].
            ok: [num_sampling] False marks a sequence that failed and gains no token.
        """
        self._num_computed[batch.rows] += batch.num_scheduled_tokens
        rows = batch.sampling_rows
        if not ok.all():
            self._has_failed[rows[~ok]] = True
            rows, token_ids = rows[ok], token_ids[ok]
        self._token_ids[rows, self._num_tokens[rows]] = token_ids
        self._num_tokens[rows] += 1

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
        if num_blocks > self._block_tables.shape[1]:
            raise InvalidRequestError(
                "block_ids", f"at most {self._block_tables.shape[1]} blocks, got {num_blocks}"
            )
        self._check_blocks("block_ids", state.block_ids)
        row = self._take_row()
        self.sampling.write(row, state.sampling_params, state.sequence_index)
        options = RowOptions.of(state, self._eos_token_ids)
        if options is not None:
            self._options[row] = options
        self._row_of[state.sequence_id] = row
        self._token_ids[row, :num_tokens] = state.token_ids
        self._block_tables[row, :num_blocks] = state.block_ids
        self._num_tokens[row] = num_tokens
        self._num_computed[row] = state.num_computed_tokens
        self._num_blocks[row] = num_blocks
        self._has_failed[row] = False

    def _fork(self, parent_id: int, child_id: int) -> None:
        if parent_id not in self._row_of or child_id in self._row_of:
            raise InvalidRequestError(
                "forks", f"sequence {parent_id} must be held here, and {child_id} must not"
            )
        parent, child = self._row_of[parent_id], self._take_row()
        self._row_of[child_id] = child
        for array in (
            self._token_ids,
            self._block_tables,
            self._num_tokens,
            self._num_computed,
            self._num_blocks,
            self._has_failed,
        ):
            array[child] = array[parent]
        self.sampling.copy(parent, child)
        if parent in self._options:
            self._options[child] = self._options[parent]

    def _replace_block(self, sequence_id: int, place: int, block_id: int) -> None:
        row = self._row_of.get(sequence_id)
        if row is None or not 0 <= place < self._num_blocks[row]:
            raise InvalidRequestError(
                "replaced_places", f"sequence {sequence_id} has no block at place {place}"
            )
        if not 0 <= block_id < self._cache_blocks:
            raise InvalidRequestError(
                "replaced_block_ids", f"must be below {self._cache_blocks}, got {block_id}"
            )
        self._block_tables[row, place] = block_id

    def _take_row(self) -> int:
        if not self._free_rows:
            self._grow()
        return self._free_rows.pop()

    def _grow(self) -> None:
        """Double the number of rows."""
        old = len(self._num_tokens)
        for name in ("token_ids", "block_tables", "num_tokens", "num_computed", "num_blocks"):
            array = getattr(self, f"_{name}")
            setattr(self, f"_{name}", np.concatenate((array, np.zeros_like(array))))
        self._has_failed = np.concatenate((self._has_failed, np.zeros_like(self._has_failed)))
        self.sampling.resize(2 * old)
        self._free_rows.extend(range(old, 2 * old))

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
        before = self._num_blocks[rows]
        after = before + counts
        if after.max() > self._block_tables.shape[1]:
            raise InvalidRequestError(
                "num_new_blocks",
                f"a table may hold {self._block_tables.shape[1]} blocks, got {after.max()}",
            )
        starts = np.cumsum(counts) - counts
        columns = np.arange(len(block_ids)) + np.repeat(before - starts, counts)
        self._block_tables[np.repeat(rows, counts), columns] = block_ids
        self._num_blocks[rows] = after

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

    def _check_batch(
        self, sequence_ids: tuple[int, ...], rows: IntArray, counts: IntArray, seq_lens: IntArray
    ) -> None:
        if len(counts) != len(rows):
            raise InvalidRequestError(
                "num_scheduled_tokens", f"must have {len(rows)} entries, got {len(counts)}"
            )
        room = np.minimum(self._num_tokens[rows], self._num_blocks[rows] * self._block_size)
        bad = (counts < 1) | (seq_lens > np.minimum(room, self._max_model_len))
        if bad.any():
            index = int(bad.argmax())
            row = rows[index]
            raise InvalidRequestError(
                "num_scheduled_tokens",
                f"sequence {sequence_ids[index]} has {self._num_tokens[row]} tokens, "
                f"{self._num_computed[row]} of them computed, and {self._num_blocks[row]} blocks "
                f"of {self._block_size}; it cannot compute {counts[index]} more",
            )
