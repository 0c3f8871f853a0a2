"""Decode steps as CUDA graphs: hundreds of kernels started by one call.

A graph keeps the addresses and sizes that it was captured with. So there is one for each of a
ladder of batch sizes, a batch is filled up to the next size with sequences that have no tokens, and
what changes from step to step is copied to the addresses that the graph reads. Logits are not part
of a graph: each graph would keep memory for the logits of its size.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from worker_svc.device.base import Array
from worker_svc.device.cuda import CudaDevice, Graph
from worker_svc.layers.attention import AttentionMetadata, KVCaches
from worker_svc.layers.attention_plans import AttentionPlans
from worker_svc.models.interface import CausalLM
from worker_svc.steps.batch import Batch
from worker_svc.steps.gpu_rows import GpuRows
from worker_svc.steps.inputs import DeviceBatch
from worker_svc.steps.rows import SequenceRows


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Return the ladder of batch sizes: 1, 2, 4, then steps of eight, of sixteen from 256 on."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, max_num_seqs + 16, 16)]
    below = [size for size in sizes if size < max_num_seqs]
    return [*below, max_num_seqs]


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph of one size.

    Attributes:
        graph: the graph.
        buffer: [bytes] uint8, the memory that it reads its inputs from.
        plans: the attention plans that it reads.
        hidden: [size, hidden_size] last hidden states that it writes.
    """

    graph: Graph
    buffer: torch.Tensor
    plans: AttentionPlans
    hidden: torch.Tensor

    def replay(self, num_sequences: int) -> torch.Tensor:
        """Start the graph; return the last hidden states [num_sequences, hidden_size].

        Mutates: the caches. The next step overwrites what was returned.
        """
        self.graph.replay()
        return self.hidden[:num_sequences]


class DecodeGraphs:
    """The decode steps of a model, one graph for each size.

    Args:
        device: the GPU that runs them.
        model: the model.
        held: the sequences.
        caches: caches of the model.
        rows: what the device keeps of the sequences.
        max_num_seqs: limit on the sequences of a batch.
    """

    def __init__(
        self,
        device: CudaDevice,
        model: CausalLM,
        held: SequenceRows,
        caches: KVCaches,
        rows: GpuRows,
        max_num_seqs: int,
    ) -> None:
        self._device = device
        self._model = model
        self._held = held
        self._caches = caches
        self._rows = rows
        self._sizes = graph_sizes(max_num_seqs)
        self._captured: dict[int, _Captured] = {}
        self._pool = device.new_pool()
        self._generation = rows.generation

    def capture(self) -> None:
        """Capture every size, the largest first: the smaller ones use its memory.

        Writes nothing to the caches.
        """
        for size in reversed(self._sizes):
            self._captured[size] = self._capture(size)

    def fits(self, batch: Batch) -> bool:
        """Return whether there is a graph for a batch."""
        return batch.is_decode and batch.num_tokens <= self._sizes[-1]

    def place(self, batch: Batch) -> DeviceBatch:
        """Copy a decode batch to the memory that its graph reads."""
        if self._generation != self._rows.generation:
            # The tables have moved, and the graphs would read them at their old place.
            self._generation = self._rows.generation
            self.capture()
        size = next(size for size in self._sizes if size >= batch.num_tokens)
        captured = self._captured[size]
        sampling = self._held.sampling.columns(batch.sampling_rows, batch.sampled_positions)
        arrays = _decode_arrays(size, batch)
        placed = self._device.place(
            {**arrays, "sampling_rows": batch.sampling_rows, **sampling}, into=captured.buffer
        )
        captured.plans.begin(
            torch.from_numpy(arrays["seq_lens"]), torch.from_numpy(arrays["query_start_loc"])
        )
        captured.plans.make_again()
        return DeviceBatch(
            partial(captured.replay, batch.num_tokens),
            None,
            placed["sampling_rows"],
            {name: placed[name] for name in sampling},
        )

    def _capture(self, size: int) -> _Captured:
        device, arrays = self._device, _decode_arrays(size)
        # Room for the sampling columns, which follow in the buffer; the graph does not read them.
        num_bytes = sum(array.nbytes + 64 for array in arrays.values()) + 64 * (size + 8)
        buffer = torch.zeros(num_bytes, dtype=torch.uint8, device=device.torch_device)
        placed = device.place(arrays, into=buffer)
        plans = AttentionPlans(max_seq_len=self._held.max_num_tokens)
        plans.begin(
            torch.from_numpy(arrays["seq_lens"]), torch.from_numpy(arrays["query_start_loc"])
        )
        hidden = torch.empty(0)

        def work() -> None:
            nonlocal hidden
            metadata = AttentionMetadata(
                caches=self._caches,
                num_tokens=size,
                slot_mapping=placed["slot_mapping"],
                block_tables=self._rows.block_tables.index_select(0, placed["rows"]),
                seq_lens=placed["seq_lens"],
                query_start_loc=placed["query_start_loc"],
                plans=plans,
            )
            input_ids = self._rows.token_ids(placed["input_codes"])
            hidden = self._model.forward(input_ids, placed["positions"], metadata)

        work()  # makes the plans, and what libraries make at their first call
        graph = device.capture(work, self._pool)
        return _Captured(graph, buffer, plans, hidden)


def _decode_arrays(size: int, batch: Batch | None = None) -> dict[str, Array]:
    """Return the arrays of a decode batch of `size` sequences; those beyond `batch` are empty.

    Shapes are those of Batch with `size` rows and sequences, dtypes the same.
    """
    count = 0 if batch is None else batch.num_tokens
    arrays: dict[str, Array] = {
        "input_codes": np.zeros(size, np.int64),
        "positions": np.zeros(size, np.int64),
        "slot_mapping": np.full(size, -1, np.int64),
        "rows": np.zeros(size, np.int64),
        "seq_lens": np.zeros(size, np.int32),
        "query_start_loc": np.minimum(np.arange(size + 1), count).astype(np.int32),
    }
    if batch is not None:
        for name in ("input_codes", "positions", "slot_mapping", "rows", "seq_lens"):
            arrays[name][:count] = getattr(batch, name)
    return arrays
