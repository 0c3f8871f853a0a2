"""Vectors of prompts: the hidden state of the last token, behind the final norm."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from quire.contract.pooling_params import PoolingParams
from worker_svc.device.base import Array, Device
from worker_svc.parallel.group import ParallelGroup
from worker_svc.steps.batch import Batch
from worker_svc.steps.rows import SequenceRows


@dataclass(frozen=True, slots=True)
class Pooled:
    """The vectors of a step, on the device that computes.

    Attributes:
        sequence_ids: [n] of which they are.
        sizes: [n] elements that each is to have, its first ones; those behind are 0.
        tensors: what is to be fetched: vectors [n, hidden_size] float32, or nothing where n is 0.
    """

    sequence_ids: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    tensors: tuple[torch.Tensor, ...] = ()

    def read(self, arrays: Sequence[Array]) -> tuple[list[tuple[int, bytes]], list[int]]:
        """Return (sequence, vector as little-endian float32) of those that are finite, and others.

        Args:
            arrays: `tensors` on the host.
        """
        found, failed = list[tuple[int, bytes]](), list[int]()
        for vectors in arrays:
            each = zip(self.sequence_ids, self.sizes, vectors, strict=True)
            for sequence_id, size, vector in each:
                if np.isfinite(vector).all():
                    found.append((sequence_id, vector[:size].astype("<f4").tobytes()))
                else:
                    failed.append(sequence_id)
        return found, failed


class Pooler:
    """Makes the vectors of the sequences whose last token a step computes.

    Args:
        parallel: the ranks: only rank 0 makes vectors, of hidden states that all of them have.
        device: the device that computes.
        held: the sequences with what they asked for.
    """

    def __init__(self, parallel: ParallelGroup, device: Device, held: SequenceRows) -> None:
        self._is_first_rank = parallel.rank == 0
        self._device = device
        self._held = held

    def pool(self, batch: Batch, hidden: torch.Tensor) -> Pooled:
        """Return the vectors of a batch.

        Args:
            batch: the batch.
            hidden: [rows, hidden_size] its last hidden states.
        """
        if (pooled := batch.pooled) is None or not self._is_first_rank:
            return Pooled()
        size = hidden.shape[1]
        asked = list(map(self._asked, pooled.rows.tolist()))
        sizes = np.array([each.dimensions or size for each in asked])
        placed = self._device.place(
            {
                "rows": pooled.batch_rows,
                "is_normalized": np.array([each.normalize for each in asked]),
                "is_kept": np.arange(size) < sizes[:, None],
            }
        )
        vectors = hidden.index_select(0, placed["rows"]).float()
        vectors = normalize(torch.where(placed["is_kept"], vectors, 0.0), placed["is_normalized"])
        return Pooled(pooled.sequence_ids, tuple(sizes.tolist()), (vectors,))

    def _asked(self, row: int) -> PoolingParams:
        pooling = self._held.sampling.options[row].pooling
        assert pooling is not None, "its row is one of a vector"
        return pooling


def normalize(vectors: torch.Tensor, is_normalized: torch.Tensor) -> torch.Tensor:
    """Return vectors [n, size] float32, some of them scaled to a Euclidean length of 1.

    The squares are exact in float64, and are added in pairs, then these sums in pairs: an order
    that depends on the size alone. So the bits are those of IEEE 754, on whatever device. A vector
    of zeros stays one.

    Args:
        vectors: [n, size] float32.
        is_normalized: [n] bool, which of them to scale.
    """
    exact = vectors.double()
    sums = exact * exact
    while (size := sums.shape[1]) > 1:
        half = -(-size // 2)
        sums = sums[:, :half] + functional.pad(sums[:, half:], (0, 2 * half - size))
    lengths = sums.sqrt()
    is_scaled = is_normalized.unsqueeze(1) & (lengths > 0)
    return (exact / torch.where(is_scaled, lengths, torch.ones_like(lengths))).float()
