"""A step's batch where the model computes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from worker_svc.device.base import Array, Device
from worker_svc.layers.attention import AttentionMetadata, KVCaches
from worker_svc.steps.batch import StepBatch
from worker_svc.steps.rows import SequenceRows


@dataclass(frozen=True, slots=True)
class SamplerInputs:
    """What the sampler is given beside the logits.

    Attributes:
        rows: [num_sampling] int64 rows of the mirror.
        columns: [num_sampling] each, by the names that ops.sample has.
    """

    rows: torch.Tensor
    columns: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model and the sampler are given.

    Attributes:
        input_ids: [rows] int64.
        positions: [rows] int64.
        metadata: of the attention.
        sample_rows: [num_sampling] int64, the batch rows whose logits are needed.
        sampler: of the sequences that sample.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    metadata: AttentionMetadata
    sample_rows: torch.Tensor
    sampler: SamplerInputs


class Placement(Protocol):
    """Brings batches to where the model computes."""

    def place(self, batch: StepBatch) -> StepInputs:
        """Return the batch as tensors there."""

    def keep_sampled(self, sampler: SamplerInputs, token_ids: torch.Tensor) -> None:
        """Note tokens [num_sampling] that the host does not know yet and the next step may need."""


class HostPlacement:
    """Of a model on the CPU: tensors are views of the batch, and every token is known.

    Args:
        device: the CPU.
        held: the sequences.
        caches: of the model.
    """

    def __init__(self, device: Device, held: SequenceRows, caches: KVCaches) -> None:
        self._device = device
        self._held = held
        self._caches = caches

    def place(self, batch: StepBatch) -> StepInputs:
        """See Placement."""
        tables = self._held.block_tables[batch.rows, : batch.table_width]
        sampling = sampler_arrays(batch, self._held)
        tensors = self._device.place({**batch_arrays(batch), "block_tables": tables, **sampling})
        return StepInputs(
            input_ids=tensors["input_codes"],
            positions=tensors["positions"],
            metadata=AttentionMetadata(
                caches=self._caches,
                num_tokens=batch.num_tokens,
                slot_mapping=tensors["slot_mapping"],
                block_tables=tensors["block_tables"],
                seq_lens=tensors["seq_lens"],
                query_start_loc=tensors["query_start_loc"],
            ),
            sample_rows=tensors["sample_rows"],
            sampler=take_sampler(tensors, sampling),
        )

    def keep_sampled(self, sampler: SamplerInputs, token_ids: torch.Tensor) -> None:
        """See Placement; the host knows them."""


def batch_arrays(batch: StepBatch) -> dict[str, Array]:
    """Return what of a batch the model needs, by name."""
    return {
        "input_codes": batch.input_codes,
        "positions": batch.positions,
        "slot_mapping": batch.slot_mapping,
        "seq_lens": batch.seq_lens,
        "query_start_loc": batch.query_start_loc,
        "sample_rows": batch.sample_rows,
    }


def sampler_arrays(batch: StepBatch, held: SequenceRows) -> dict[str, Array]:
    """Return what of a batch the sampler needs, by name."""
    return {
        "sampling_rows": batch.sampling_rows,
        **held.sampling.columns(batch.sampling_rows),
        "position": batch.sampled_positions,
    }


def take_sampler(placed: dict[str, torch.Tensor], names: Iterable[str]) -> SamplerInputs:
    """Return what the sampler needs out of what was placed, given the names of that."""
    columns = {name: placed[name] for name in names}
    return SamplerInputs(columns.pop("sampling_rows"), columns)
