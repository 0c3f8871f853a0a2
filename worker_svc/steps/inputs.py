"""A step's batch as tensors where the model computes: what is common, and the CPU's."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from worker_svc.device.base import Array, Device
from worker_svc.layers.attention import AttentionMetadata, KVCaches
from worker_svc.models.interface import CausalLM
from worker_svc.steps.batch import Batch
from worker_svc.steps.cpu_graphs import CpuGraphs
from worker_svc.steps.rows import SequenceRows


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A batch on the device.

    Attributes:
        forward: starts the model; returns the last hidden states [rows, hidden_size].
            Mutates: the caches. What it returned may be overwritten by the next step.
        sample_rows: [num_sampling] int64, the rows whose logits are needed; None for all of them.
        sampling_rows: [num_sampling] int64 rows of the mirror.
        sampling_columns: [num_sampling] each, arguments of ops.sample beside the logits, by name.
    """

    forward: Callable[[], torch.Tensor]
    sample_rows: torch.Tensor | None
    sampling_rows: torch.Tensor
    sampling_columns: dict[str, torch.Tensor]


class Inputs(Protocol):
    """Brings batches to the device."""

    def capture_graphs(self, max_num_batched_tokens: int | None = None) -> None:
        """Capture decode steps as graphs, where they are used.

        Args:
            max_num_batched_tokens: limit on the tokens of a step, for whose graph memory is set
                aside; None for none.
        """

    def place(self, batch: Batch, *, layer_by_layer: bool) -> DeviceBatch:
        """Return a batch as tensors on the device.

        Args:
            batch: the batch.
            layer_by_layer: whether layers must wait for blocks, each for its own.
        """

    def keep_sampled(self, placed: DeviceBatch, token_ids: torch.Tensor) -> None:
        """Keep tokens [num_sampling] int64 for the next step, if the host has yet to learn them."""


class CpuInputs:
    """The inputs of a model on the CPU: tensors are views of the batch.

    Args:
        device: the CPU.
        model: the model.
        held: the sequences.
        caches: caches of the model.
        use_graphs: whether small steps are graphs.

    Attributes:
        graphs: the steps recorded; None without graphs.
    """

    def __init__(
        self,
        device: Device,
        model: CausalLM,
        held: SequenceRows,
        caches: KVCaches,
        *,
        use_graphs: bool = False,
    ) -> None:
        self._device = device
        self._model = model
        self._held = held
        self._caches = caches
        self.graphs: CpuGraphs | None = None
        if use_graphs and model.is_capturable:
            self.graphs = CpuGraphs(model, held, caches)

    def capture_graphs(self, max_num_batched_tokens: int | None = None) -> None:
        """See Inputs; steps on the CPU make their graphs themselves."""

    def place(self, batch: Batch, *, layer_by_layer: bool) -> DeviceBatch:
        """See Inputs."""
        sampling = self._held.sampling.columns(batch.sampling_rows, batch.sampled_positions)
        placed = self._device.place({**model_arrays(batch), **sampling})
        forward = partial(self._forward, batch, placed)
        # The layers of a graph do not wait for blocks.
        if self.graphs is not None and not layer_by_layer and self.graphs.fits(batch):
            forward = partial(self.graphs.forward, batch)
        return DeviceBatch(
            forward,
            None if batch.is_decode else placed["sample_rows"],
            placed["sampling_rows"],
            {name: placed[name] for name in sampling},
        )

    def _forward(self, batch: Batch, placed: dict[str, torch.Tensor]) -> torch.Tensor:
        tables = self._held.block_tables[batch.rows, : batch.table_width]
        metadata = AttentionMetadata(
            caches=self._caches,
            num_tokens=batch.num_tokens,
            slot_mapping=placed["slot_mapping"],
            block_tables=torch.from_numpy(tables),
            seq_lens=placed["seq_lens"],
            query_start_loc=placed["query_start_loc"],
        )
        return self._model.forward(placed["input_codes"], placed["positions"], metadata)

    def keep_sampled(self, placed: DeviceBatch, token_ids: torch.Tensor) -> None:
        """See Inputs; the host knows these tokens before the next step."""


def model_arrays(batch: Batch) -> dict[str, Array]:
    """Return the arrays of a batch that a device needs, by name; shapes and dtypes as in Batch."""
    return {
        "input_codes": batch.input_codes,
        "positions": batch.positions,
        "slot_mapping": batch.slot_mapping,
        "seq_lens": batch.seq_lens,
        "query_start_loc": batch.query_start_loc,
        "sample_rows": batch.sample_rows,
        "sampling_rows": batch.sampling_rows,
    }
