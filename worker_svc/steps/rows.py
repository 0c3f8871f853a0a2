"""Arrays with a row for each sequence that a worker holds."""

import numpy as np

from worker_svc.sampling.sampler import SamplingTable
from worker_svc.steps.step import IntArray, SequenceState

_INITIAL_ROWS = 64
_ARRAYS = ("token_ids", "block_tables", "num_tokens", "num_computed", "num_blocks", "has_failed")


class SequenceRows:
    """Tokens, block tables and sampling parameters of sequences, a row for each.

    The arrays live as long as the cache and grow by doubling, so that a step only changes what its
    deltas name.

    Args:
        block_size: tokens of a block.
        max_num_tokens: of a sequence.
        num_rows: to begin with.

    Attributes:
        block_size: tokens of a block.
        token_ids: [rows, max_num_tokens] int32; negative where only a device knows the token: the
            mark of the step that sampled it.
        block_tables: [rows, blocks of max_num_tokens] int32.
        num_tokens: [rows] tokens known.
        num_computed: [rows] tokens whose keys and values are in the cache.
        num_blocks: [rows] length of the block table.
        has_failed: [rows] in an earlier step.
        sampling: the parameters.
    """

    def __init__(self, block_size: int, max_num_tokens: int, num_rows: int = _INITIAL_ROWS) -> None:
        max_blocks = -(-max_num_tokens // block_size)
        self.block_size = block_size
        self.token_ids = np.zeros((num_rows, max_num_tokens), np.int32)
        self.block_tables = np.zeros((num_rows, max_blocks), np.int32)
        self.num_tokens = np.zeros(num_rows, np.int64)
        self.num_computed = np.zeros(num_rows, np.int64)
        self.num_blocks = np.zeros(num_rows, np.int64)
        self.has_failed = np.zeros(num_rows, np.bool_)
        self.sampling = SamplingTable(num_rows)
        self._free = list(range(num_rows))
        # Places in `block_tables`, flattened, that were written since somebody last asked; None
        # until somebody has.
        self._written: list[IntArray] | None = None

    def __len__(self) -> int:
        return len(self.num_tokens)

    @property
    def max_blocks(self) -> int:
        """Blocks of a table at most."""
        return int(self.block_tables.shape[1])

    @property
    def max_num_tokens(self) -> int:
        """Tokens of a sequence at most."""
        return int(self.token_ids.shape[1])

    @property
    def free(self) -> list[int]:
        """Rows that no sequence has."""
        return list(self._free)

    def add(self, state: SequenceState) -> int:
        """Write a sequence into a free row, and return that."""
        row, num_tokens, num_blocks = self._take(), len(state.token_ids), len(state.block_ids)
        self.token_ids[row, :num_tokens] = state.token_ids
        self.block_tables[row, :num_blocks] = state.block_ids
        self._note_table(row, num_blocks)
        self.num_tokens[row] = num_tokens
        self.num_computed[row] = state.num_computed_tokens
        self.num_blocks[row] = num_blocks
        self.has_failed[row] = False
        self.sampling.write(row, state.sampling_params, state.sequence_index)
        return row

    def copy(self, row: int) -> int:
        """Copy a sequence into a free row, and return that."""
        child = self._take()
        for name in _ARRAYS:
            array = getattr(self, name)
            array[child] = array[row]
        self.sampling.copy(row, child)
        self._note_table(child, int(self.num_blocks[child]))
        return child

    def release(self, row: int) -> None:
        """Let others have a row."""
        self._free.append(row)

    def clear(self) -> None:
        """Release every row."""
        self._free = list(range(len(self)))

    def append_blocks(self, rows: IntArray, counts: IntArray, block_ids: IntArray) -> None:
        """Append to block tables.

        Args:
            rows: [n] distinct.
            counts: [n] blocks for each; the tables have room for them.
            block_ids: [sum of counts], one sequence after the other.
        """
        before, starts = self.num_blocks[rows], np.cumsum(counts) - counts
        columns = np.arange(len(block_ids)) + np.repeat(before - starts, counts)
        token_rows = np.repeat(rows, counts)
        self.block_tables[token_rows, columns] = block_ids
        self.num_blocks[rows] = before + counts
        if self._written is not None and len(block_ids) > 0:
            self._written.append(token_rows * self.max_blocks + columns)

    def replace_block(self, row: int, place: int, block_id: int) -> None:
        """Let another block take a place in a table."""
        self.block_tables[row, place] = block_id
        if self._written is not None:
            self._written.append(np.array([row * self.max_blocks + place]))

    def take_written(self) -> IntArray:
        """Return the places in `block_tables`, flattened, written since the last call.

        Each once; the first call returns none, and begins to watch.
        """
        written, self._written = self._written, []
        return np.unique(np.concatenate(written)) if written else np.empty(0, np.int64)

    def _note_table(self, row: int, num_blocks: int) -> None:
        if self._written is not None and num_blocks > 0:
            self._written.append(row * self.max_blocks + np.arange(num_blocks))

    def _take(self) -> int:
        if not self._free:
            self._grow()
        return self._free.pop()

    def _grow(self) -> None:
        """Double the number of rows."""
        old = len(self)
        for name in _ARRAYS:
            array = getattr(self, name)
            setattr(self, name, np.concatenate((array, np.zeros_like(array))))
        self.sampling.resize(2 * old)
        self._free.extend(range(old, 2 * old))
