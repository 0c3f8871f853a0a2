"""The flattened ragged batch of a step.

A fixed number of numpy calls gathers it from the arrays of the sequences, however many there are:
tens of microseconds at 64 decoding sequences, where rebuilding lists of block ids and tokens takes
milliseconds.
"""

from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt

from worker_svc.arrays import IntArray
from worker_svc.steps.rows import SequenceRows


@dataclass(frozen=True, slots=True)
class PooledRows:
    """The sequences of a batch that get a vector.

    Attributes:
        sequence_ids: [n] of them.
        batch_rows: [n] int64, the batch rows of their last tokens.
        rows: [n] int64 rows of the mirror.
    """

    sequence_ids: tuple[int, ...]
    batch_rows: IntArray
    rows: IntArray


@dataclass(frozen=True, slots=True)
class Batch:
    """A ragged batch, tokens of all sequences back to back, on the host.

    Attributes:
        sequence_ids: [num_sequences] sequences that are computed.
        num_tokens: of all sequences together, drafts included.
        input_codes: [num_tokens] int64 token ids. The code of a token that only the device knows is
            -1 - row of the mirror, whose last token it is.
        positions: [num_tokens] int64.
        slot_mapping: [num_tokens] int64.
        table_width: blocks of the longest sequence.
        seq_lens: [num_sequences] int32, tokens with those of this step.
        query_start_loc: [num_sequences + 1] int32.
        sample_rows: [num_sampling] int64, the batch rows whose logits are needed.
        rows: [num_sequences] int64 rows of the mirror.
        num_scheduled_tokens: [num_sequences] int64 tokens that this step computes, with drafts.
        sampling_rows: [num_sampling] int64 rows of the mirror of the sequences that sample. Each is
            there once more for each of its drafts.
        sampled_positions: [num_sampling] int64, index in its sequence of the token each will
            sample.
        sampling_ids: [num_sampling] ids of the sequences that sample.
        failed_ids: sequences that failed in an earlier step and were left out of this batch.
        mark: negative number that stands for the tokens of this step in the mirror.
        num_drafted: drafts of each sequence that had slots for them.
        expected_ids: [num_sampling] int64, see `rows_that_count`; None if nothing was drafted.
        pooled: sequences whose last token is computed to get a vector; None where there are none.
    """

    sequence_ids: tuple[int, ...]
    num_tokens: int
    input_codes: IntArray
    positions: IntArray
    slot_mapping: IntArray
    table_width: int
    seq_lens: npt.NDArray[np.int32]
    query_start_loc: npt.NDArray[np.int32]
    sample_rows: IntArray
    rows: IntArray
    num_scheduled_tokens: IntArray
    sampling_rows: IntArray
    sampled_positions: IntArray
    sampling_ids: tuple[int, ...]
    failed_ids: tuple[int, ...]
    mark: int
    num_drafted: tuple[int, ...] = ()
    expected_ids: IntArray | None = None
    pooled: PooledRows | None = None

    @property
    def is_decode(self) -> bool:
        """Whether each sequence computes one token and samples the next."""
        return 0 < self.num_tokens == len(self.rows) == len(self.sampling_rows)


def gather_batch(
    held: SequenceRows,
    sequence_ids: tuple[int, ...],
    rows: IntArray,
    counts: IntArray,
    *,
    failed_ids: tuple[int, ...],
    mark: int,
    computed: IntArray | None = None,
    num_drafts: IntArray | None = None,
    num_drafted: tuple[int, ...] = (),
) -> Batch:
    """Lay out the next tokens of some sequences back to back.

    Args:
        held: every sequence.
        sequence_ids: [num_sequences] sequences that the step computes.
        rows: [num_sequences] int64 row of each.
        counts: [num_sequences] int64 tokens to compute of each; all have slots.
        failed_ids: see Batch.
        mark: see Batch.
        computed: [num_sequences] int64 tokens of each before those to compute; None for what the
            cache of the model has.
        num_drafts: [num_sequences] int64 drafts of each, which stand behind its tokens; None if
            there are none.
        num_drafted: see Batch.
    """
    if num_drafts is not None:
        counts = counts + num_drafts
    # Everything is per token: which sequence, which position, which slot.
    if computed is None:
        computed = held.num_computed[rows]
    seq_lens = computed + counts
    query_start_loc = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=query_start_loc[1:])
    num_tokens = int(query_start_loc[-1])
    token_rows = np.repeat(rows, counts)
    positions = np.arange(num_tokens) + np.repeat(computed - query_start_loc[:-1], counts)
    blocks, offsets = np.divmod(positions, held.block_size)
    slots = held.block_tables[token_rows, blocks].astype(np.int64)
    slots *= held.block_size
    slots += offsets
    codes = held.token_ids[token_rows, positions].astype(np.int64)
    unknown = codes < 0
    if unknown.any():
        codes[unknown] = -1 - token_rows[unknown]

    num_known = held.num_tokens[rows]
    samples = (seq_lens if num_drafts is None else seq_lens - num_drafts) == num_known
    is_pooled, pooled = held.is_pooled[rows], None
    if is_pooled.any():
        pools, samples = samples & is_pooled, samples & ~is_pooled
        if pools.any():
            last_rows = query_start_loc[1:][pools].astype(np.int64) - 1
            pooled = PooledRows(tuple(compress(sequence_ids, pools)), last_rows, rows[pools])
    if samples.all():
        sampling_rows, sampling_ids, sampled_positions = rows, sequence_ids, num_known
    else:
        sampling_rows, sampled_positions = rows[samples], num_known[samples]
        sampling_ids = tuple(np.array(sequence_ids, np.int64)[samples].tolist())
    sample_rows, expected_ids = query_start_loc[1:][samples].astype(np.int64) - 1, None
    if num_drafts is not None:
        num_rows = 1 + num_drafts[samples]
        nth = np.arange(num_rows.sum()) - np.repeat(np.cumsum(num_rows) - num_rows, num_rows)
        sampling_rows = np.repeat(sampling_rows, num_rows)
        sampled_positions = np.repeat(sampled_positions, num_rows) + nth
        sampling_ids = tuple(np.repeat(np.array(sampling_ids, np.int64), num_rows).tolist())
        num_behind = np.repeat(num_rows, num_rows) - 1 - nth
        sample_rows = np.repeat(sample_rows, num_rows) - num_behind
        expected_ids = np.where(num_behind > 0, np.append(codes[1:], -1)[sample_rows], -1)
    return Batch(
        sequence_ids=sequence_ids,
        num_tokens=num_tokens,
        input_codes=codes,
        positions=positions,
        slot_mapping=slots,
        table_width=-(-int(seq_lens.max(initial=0)) // held.block_size),
        seq_lens=seq_lens.astype(np.int32),
        query_start_loc=query_start_loc,
        sample_rows=sample_rows,
        rows=rows,
        num_scheduled_tokens=counts,
        sampling_rows=sampling_rows,
        sampled_positions=sampled_positions,
        sampling_ids=sampling_ids,
        failed_ids=failed_ids,
        mark=mark,
        num_drafted=num_drafted,
        expected_ids=expected_ids,
        pooled=pooled,
    )
