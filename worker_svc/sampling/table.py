"""Sampling parameters of the sequences that a worker holds, by row of the mirror."""

from typing import Any

import numpy as np
import numpy.typing as npt

from quire.contract.errors import InvalidRequestError
from quire.contract.steps import SequenceState
from worker_svc.arrays import IntArray
from worker_svc.sampling.grammars import Grammars
from worker_svc.sampling.options import RowOptions

_OFF = 0  # as ops.sample's top_k
_COLUMNS = ("temperature", "top_k", "top_p", "min_p", "seed", "sequence_index")


class SamplingTable:
    """What every sequence has in columns, and what few sequences ask for in a dictionary.

    A row is written when its sequence comes and read in every step.

    Args:
        num_rows: rows to begin with.
        eos_token_ids: end-of-text ids of the model.

    Attributes:
        options: by row, of the rows that have any.
        grammars: opens those of sequences; None on ranks that sample nothing.
    """

    def __init__(self, num_rows: int, eos_token_ids: tuple[int, ...]) -> None:
        self.options: dict[int, RowOptions] = {}
        self.grammars: Grammars | None = None
        self._eos_token_ids = eos_token_ids
        self._temperature = np.zeros(num_rows, np.float32)
        self._top_k = np.zeros(num_rows, np.int32)
        self._top_p = np.ones(num_rows, np.float32)
        self._min_p = np.zeros(num_rows, np.float32)
        self._seed = np.zeros(num_rows, np.int64)
        self._sequence_index = np.zeros(num_rows, np.int32)

    def resize(self, num_rows: int) -> None:
        """Make room for `num_rows` rows, and keep the first ones."""
        for name in _COLUMNS:
            old = getattr(self, f"_{name}")
            new = np.zeros(num_rows, old.dtype)
            new[: len(old)] = old
            setattr(self, f"_{name}", new)

    def write(self, row: int, state: SequenceState) -> None:
        """Set the parameters of a row that has none.

        Raises:
            InvalidRequestError: no seed; the scheduler draws one for every request.
        """
        params = state.sampling_params
        if params.seed is None:
            raise InvalidRequestError("seed", "must be set by the scheduler, got none")
        self._temperature[row] = params.temperature
        self._top_k[row] = _OFF if params.top_k is None else params.top_k
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seed[row] = np.uint64(params.seed).astype(np.int64)
        self._sequence_index[row] = state.sequence_index
        options = RowOptions.of(state, self._eos_token_ids, self.grammars)
        if options is not None:
            self.options[row] = options

    def copy(self, source: int, destination: int) -> None:
        """Give a row that has none the parameters of another."""
        for name in _COLUMNS:
            column = getattr(self, f"_{name}")
            column[destination] = column[source]
        if source in self.options:
            self.options[destination] = self.options[source].fork()

    def sequence_index(self, row: int) -> int:
        """Return the number of the sequence within its group."""
        return int(self._sequence_index[row])

    def release(self, row: int) -> None:
        """Forget what a row asks for; its columns mean nothing until they are written again."""
        self.options.pop(row, None)

    def clear(self) -> None:
        """Release every row."""
        self.options.clear()

    def columns(self, rows: IntArray, positions: IntArray) -> dict[str, npt.NDArray[Any]]:
        """Return the arguments of ops.sample beside the logits, [n] each, by name.

        Args:
            rows: [n] int64 rows to sample for.
            positions: [n] int64 index of the token to sample in each sequence.
        """
        columns = {name: getattr(self, f"_{name}")[rows] for name in _COLUMNS}
        columns["position"] = positions
        return columns
