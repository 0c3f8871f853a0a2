"""Arrays with a row for each sequence that a worker holds."""

import numpy as np

from quire.contract.steps import SequenceState
from worker_svc.arrays import IntArray
from worker_svc.sampling.table import SamplingTable

_INITIAL_ROWS = 64
_ARRAYS = (
    "token_ids",
    "block_tables",
    "num_tokens",
    "num_computed",
    "num_draft_computed",
    "num_blocks",
    "num_recorded",
    "has_failed",
    "is_pooled",
)


class SequenceRows:
    """Tokens, block tables and sampling parameters of sequences, a row for each.

    The arrays live as long as the cache and grow by doubling, so that a step writes only what its
    orders name.

    Args:
        block_size: tokens of a block.
        max_num_tokens: limit on the tokens of a sequence.
        eos_token_ids: end-of-text ids of the model.
        num_rows: rows to begin with.

    Attributes:
        block_size: tokens of a block.
        token_ids: [rows, max_num_tokens] int32; negative where only a device knows the token: the
            mark of the step that sampled it.
        block_tables: [rows, blocks of max_num_tokens] int32.
        num_tokens: [rows] int64, tokens of the sequence, those with marks included.
        num_computed: [rows] int64, tokens whose keys and values the cache has, or will have once
            the steps under way are done; 0 where no sequence is.
        num_draft_computed: [rows] int64, the same of the cache of a draft model: at most
            num_computed, which is how far both have the same blocks.
        num_blocks: [rows] int64, length of the block table.
        num_recorded: [rows] int64, full blocks whose contents were recorded.
        has_failed: [rows] bool, whether an earlier step failed for the sequence.
        is_pooled: [rows] bool, whether the sequence gets a vector and samples nothing.
        sampling: sampling parameters.
    """

    def __init__(
        self,
        block_size: int,
        max_num_tokens: int,
        eos_token_ids: tuple[int, ...],
        num_rows: int = _INITIAL_ROWS,
    ) -> None:
        max_blocks = -(-max_num_tokens // block_size)
        self.block_size = block_size
        self.token_ids = np.zeros((num_rows, max_num_tokens), np.int32)
        self.block_tables = np.zeros((num_rows, max_blocks), np.int32)
        self.num_tokens = np.zeros(num_rows, np.int64)
        self.num_computed = np.zeros(num_rows, np.int64)
        self.num_draft_computed = np.zeros(num_rows, np.int64)
        self.num_blocks = np.zeros(num_rows, np.int64)
        self.num_recorded = np.zeros(num_rows, np.int64)
        self.has_failed = np.zeros(num_rows, np.bool_)
        self.is_pooled = np.zeros(num_rows, np.bool_)
        self.sampling = SamplingTable(num_rows, eos_token_ids)
        self._free = list(range(num_rows))
        # Places in `block_tables`, flattened, written since the last call of take_written; None
        # before the first call.
        self._written: list[IntArray] | None = None

    def __len__(self) -> int:
        return len(self.num_tokens)

    @property
    def max_blocks(self) -> int:
        """Limit on the blocks of a table."""
        return int(self.block_tables.shape[1])

    @property
    def max_num_tokens(self) -> int:
        """Limit on the tokens of a sequence."""
        return int(self.token_ids.shape[1])

    @property
    def free(self) -> list[int]:
        """The rows that hold no sequence."""
        return list(self._free)

    def add(self, state: SequenceState) -> int:
        """Write a sequence into a free row and return the row.

        Mutates: this row, and all arrays if no row was free.

        Raises:
            InvalidRequestError: the sequence has no seed.
        """
        row, num_tokens, num_blocks = self._take(), len(state.token_ids), len(state.block_ids)
        self.token_ids[row, :num_tokens] = state.token_ids
        self.block_tables[row, :num_blocks] = state.block_ids
        self._record_table(row, num_blocks)
        self.num_tokens[row] = num_tokens
        self.num_computed[row] = state.num_computed_tokens
        # What the blocks hold was perhaps moved, or computed when nothing was drafted.
        self.num_draft_computed[row] = 0
        self.num_blocks[row] = num_blocks
        self.num_recorded[row] = 0
        self.has_failed[row] = False
        self.is_pooled[row] = state.pooling_params is not None
        self.sampling.write(row, state)
        return row

    def copy(self, row: int) -> int:
        """Copy a sequence into a free row and return the row.

        Mutates: this row, and all arrays if no row was free.
        """
        child = self._take()
        for name in _ARRAYS:
            array = getattr(self, name)
            array[child] = array[row]
        self.sampling.copy(row, child)
        self._record_table(child, int(self.num_blocks[child]))
        return child

    def release(self, row: int) -> None:
        """Make a row free."""
        self.sampling.release(row)
        self.num_computed[row] = 0
        self._free.append(row)

    def clear(self) -> None:
        """Release every row."""
        self.sampling.clear()
        self.num_computed[:] = 0
        self._free = list(range(len(self)))

    def append_blocks(self, rows: IntArray, counts: IntArray, block_ids: IntArray) -> None:
        """Append to block tables.

        Mutates: block_tables and num_blocks.

        Args:
            rows: [n] int64, distinct.
            counts: [n] int64, blocks for each; the tables have room for them.
            block_ids: [sum of counts] int64, one sequence after the other.
        """
        before, starts = self.num_blocks[rows], np.cumsum(counts) - counts
        columns = np.arange(len(block_ids)) + np.repeat(before - starts, counts)
        token_rows = np.repeat(rows, counts)
        self.block_tables[token_rows, columns] = block_ids
        self.num_blocks[rows] = before + counts
        if self._written is not None and len(block_ids) > 0:
            self._written.append(token_rows * self.max_blocks + columns)

    def replace_block(self, row: int, place: int, block_id: int) -> None:
        """Put another block at a place of a table."""
        self.block_tables[row, place] = block_id
        # The cache of a draft model is not copied.
        computed = self.num_draft_computed
        computed[row] = min(computed[row], place * self.block_size)
        if self._written is not None:
            self._written.append(np.array([row * self.max_blocks + place]))

    def take_written(self) -> IntArray:
        """Return the places [n] int64 in `block_tables`, flattened, written since the last call.

        Each place occurs once. The first call returns none and starts the recording.
        """
        written, self._written = self._written, []
        return np.unique(np.concatenate(written)) if written else np.empty(0, np.int64)

    def _record_table(self, row: int, num_blocks: int) -> None:
        if self._written is not None and num_blocks > 0:
            self._written.append(row * self.max_blocks + np.arange(num_blocks))

    def _take(self) -> int:
        if not self._free:
            self._grow()
        return self._free.pop()

    def _grow(self) -> None:
        """Double the number of rows; every array moves."""
        old = len(self)
        for name in _ARRAYS:
            array = getattr(self, name)
            setattr(self, name, np.concatenate((array, np.zeros_like(array))))
        self.sampling.resize(2 * old)
        self._free.extend(range(old, 2 * old))
