"""From logits to tokens: parameters of the live sequences in columns, one call for the batch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from quire.contract.errors import InvalidRequestError
from quire.contract.sampling_params import SamplingParams
from worker_svc import ops
from worker_svc.parallel.group import ParallelGroup
from worker_svc.steps.step import IntArray

_KEEP_ALL = 0
_COLUMNS = ("temperature", "top_k", "top_p", "min_p", "seed", "sequence_index")


class SamplingTable:
    """Sampling parameters by row of the mirror; written when a sequence comes, read every step."""

    def __init__(self, num_rows: int) -> None:
        self._temperature = np.zeros(num_rows, np.float32)
        self._top_k = np.zeros(num_rows, np.int32)
        self._top_p = np.ones(num_rows, np.float32)
        self._min_p = np.zeros(num_rows, np.float32)
        self._seed = np.zeros(num_rows, np.int64)
        self._sequence_index = np.zeros(num_rows, np.int32)

    def resize(self, num_rows: int) -> None:
        """Make room for `num_rows` rows, keeping the first ones."""
        for name in _COLUMNS:
            old = getattr(self, f"_{name}")
            new = np.zeros(num_rows, old.dtype)
            new[: len(old)] = old
            setattr(self, f"_{name}", new)

    def write(self, row: int, params: SamplingParams, sequence_index: int) -> None:
        """Set the parameters of a row.

        Raises:
            InvalidRequestError: no seed; the scheduler draws one for every request.
        """
        if params.seed is None:
            raise InvalidRequestError("seed", "must be set by the scheduler")
        self._temperature[row] = params.temperature
        self._top_k[row] = _KEEP_ALL if params.top_k is None else params.top_k
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seed[row] = np.uint64(params.seed).astype(np.int64)
        self._sequence_index[row] = sequence_index

    def copy(self, source: int, destination: int) -> None:
        """Give a row the parameters of another."""
        for name in _COLUMNS:
            column = getattr(self, f"_{name}")
            column[destination] = column[source]

    def columns(self, rows: IntArray) -> dict[str, npt.NDArray[Any]]:
        """Return the parameters of some rows, [n] each, by the names that ops.sample has."""
        return {name: getattr(self, f"_{name}")[rows] for name in _COLUMNS}


def sample_on_first_rank(
    parallel: ParallelGroup, logits: torch.Tensor, columns: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose a token for each row on rank 0 and tell the other ranks, which keep the same.

    Args:
        parallel: the ranks.
        logits: [n, vocab_size] float32; of ranks above 0 only the number of rows counts.
        columns: the arguments of ops.sample beside the logits, by name.

    Returns:
        token_ids [n] int64 and whether each sequence's logits were finite, [n] bool.
    """
    if parallel.size == 1:
        return ops.sample(logits, **columns)
    message = torch.zeros(2, len(logits), dtype=torch.int64, device=logits.device)
    if parallel.rank == 0:
        token_ids, ok = ops.sample(logits, **columns)
        message[0], message[1] = token_ids, ok
    parallel.broadcast(message)
    return message[0], message[1].bool()
