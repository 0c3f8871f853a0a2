"""A step's batch on a GPU, which keeps block tables and last tokens itself.

So a step brings only what is new, and may start before the tokens of the step before it have come
back to the host.
"""

from functools import partial

import torch

from worker_svc.device.cuda import CudaDevice
from worker_svc.layers.attention import AttentionMetadata, KVCaches
from worker_svc.layers.attention_plans import AttentionPlans
from worker_svc.models.interface import CausalLM
from worker_svc.steps.batch import Batch
from worker_svc.steps.gpu_rows import GpuRows
from worker_svc.steps.graphs import DecodeGraphs
from worker_svc.steps.inputs import DeviceBatch, model_arrays
from worker_svc.steps.mixed_graphs import MixedGraphs
from worker_svc.steps.rows import SequenceRows


class GpuInputs:
    """The inputs of a model on a GPU.

    Args:
        device: the GPU.
        model: the model.
        held: the sequences.
        caches: caches of the model.
        max_num_seqs: limit on the sequences of a step, up to which steps are captured as graphs;
            None for no graphs.
        rows: what the device keeps of the sequences already, for another model; None for nothing.

    Attributes:
        rows: what the device keeps of the sequences.
        graphs: the decode steps captured; None without graphs.
        mixed_graphs: other small steps that were captured; None without graphs.
    """

    def __init__(
        self,
        device: CudaDevice,
        model: CausalLM,
        held: SequenceRows,
        caches: KVCaches,
        max_num_seqs: int | None = None,
        rows: GpuRows | None = None,
    ) -> None:
        self._device = device
        self._model = model
        self._held = held
        self._caches = caches
        self._plans = AttentionPlans()
        self.rows = GpuRows(device, held) if rows is None else rows
        self.graphs: DecodeGraphs | None = None
        self.mixed_graphs: MixedGraphs | None = None
        if max_num_seqs is not None and model.is_capturable:
            of_model = device, model, held, caches, self.rows, max_num_seqs
            self.graphs = DecodeGraphs(*of_model)
            self.mixed_graphs = MixedGraphs(*of_model, self.graphs.pool)

    def capture_graphs(self, max_num_batched_tokens: int | None = None) -> None:
        """See Inputs."""
        if self.graphs is None or self.mixed_graphs is None:
            return
        if max_num_batched_tokens is not None:
            self.mixed_graphs.reserve(max_num_batched_tokens)
        self.graphs.capture()
        # Again, since results of decode steps lie in the same pool by now.
        self.mixed_graphs.reserve_again()
        self.graphs.reserve_again()

    def place(self, batch: Batch, *, layer_by_layer: bool) -> DeviceBatch:
        """See Inputs."""
        self.rows.update()
        # The layers of a graph do not wait for blocks.
        if not layer_by_layer:
            for graphs in (self.graphs, self.mixed_graphs):
                if graphs is not None and graphs.fits(batch):
                    return graphs.place(batch)
        sampling = self._held.sampling.columns(batch.sampling_rows, batch.sampled_positions)
        placed = self._device.place({**model_arrays(batch), "rows": batch.rows, **sampling})
        self._plans.begin(
            torch.from_numpy(batch.seq_lens),
            torch.from_numpy(batch.query_start_loc),
            torch.from_numpy(self._held.block_tables),
            torch.from_numpy(batch.rows),
        )
        tables = self.rows.block_tables.index_select(0, placed["rows"])
        input_ids = self.rows.token_ids(placed["input_codes"])
        metadata = AttentionMetadata(
            caches=self._caches,
            num_tokens=batch.num_tokens,
            slot_mapping=placed["slot_mapping"],
            block_tables=tables[:, : batch.table_width],
            seq_lens=placed["seq_lens"],
            query_start_loc=placed["query_start_loc"],
            plans=self._plans,
        )
        return DeviceBatch(
            partial(self._model.forward, input_ids, placed["positions"], metadata),
            placed["sample_rows"],
            placed["sampling_rows"],
            {name: placed[name] for name in sampling},
        )

    def keep_sampled(self, placed: DeviceBatch, token_ids: torch.Tensor) -> None:
        """See Inputs."""
        self.rows.last_tokens.index_copy_(0, placed.sampling_rows, token_ids)
