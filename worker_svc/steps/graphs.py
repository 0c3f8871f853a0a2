"""Decode steps as CUDA graphs: hundreds of kernels started by one call.

A graph is captured with the addresses and sizes it has then. So there is one for each of a ladder
of batch sizes, a batch is filled up to the next of them with sequences that have no tokens, and
what changes from step to step is copied to where the graph looks for it. Logits are not part of it:
each graph would keep memory for those of its size.
"""

from dataclasses import dataclass

import numpy as np
import torch

from worker_svc.device.base import Array
from worker_svc.device.cuda import CudaDevice, Graph
from worker_svc.layers.attention import AttentionMetadata, KVCaches
from worker_svc.layers.attention_plans import AttentionPlans
from worker_svc.models.interface import CausalLM
from worker_svc.steps.batch import StepBatch
from worker_svc.steps.gpu_inputs import DeviceRows
from worker_svc.steps.inputs import SamplerInputs, sampler_arrays, take_sampler
from worker_svc.steps.rows import SequenceRows


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Return the ladder of batch sizes: 1, 2, 4, then steps of eight, of sixteen from 256 on."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, max_num_seqs + 16, 16)]
    below = [size for size in sizes if size < max_num_seqs]
    return [*below, max_num_seqs]


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: Graph
    buffer: torch.Tensor
    plans: AttentionPlans
    hidden: torch.Tensor


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A decode step that only needs to be started.

    Attributes:
        sampler: what the sampler needs.
    """

    _graph: Graph
    _hidden: torch.Tensor
    sampler: SamplerInputs

    def run(self) -> torch.Tensor:
        """Start it; return the last hidden states [num_sequences, hidden_size].

        Mutates: the caches. The next step overwrites what was returned.
        """
        self._graph.replay()
        return self._hidden


class DecodeGraphs:
    """The graphs of a model.

    Args:
        device: that runs them.
        model: whose decode steps they are.
        caches: of the model.
        held: the sequences.
        rows: what the device keeps of them.
        max_num_seqs: of a batch.
    """

    def __init__(
        self,
        device: CudaDevice,
        model: CausalLM,
        caches: KVCaches,
        held: SequenceRows,
        rows: DeviceRows,
        max_num_seqs: int,
    ) -> None:
        self._device = device
        self._model = model
        self._caches = caches
        self._held = held
        self._rows = rows
        self._sizes = graph_sizes(max_num_seqs)
        self._captured: dict[int, _Captured] = {}
        self._pool = device.new_pool()
        self._generation = rows.generation

    def capture(self) -> None:
        """Capture every size, the largest first: smaller ones find the memory they need.

        Writes nothing to the caches.
        """
        for size in reversed(self._sizes):
            self._captured[size] = self._capture(size)

    def prepare(self, batch: StepBatch) -> "PreparedStep | None":
        """Bring a decode step to where its graph looks for it; None if no graph is for it."""
        if not batch.is_decode or batch.prompt_parts or batch.num_tokens > self._sizes[-1]:
            return None
        self._rows.update()
        if self._generation != self._rows.generation:
            # The tables have moved, and the graphs look for them where they were.
            self._generation = self._rows.generation
            self.capture()
        size = next(size for size in self._sizes if size >= batch.num_tokens)
        captured = self._captured[size]
        sampling = sampler_arrays(batch, self._held)
        arrays = _decode_arrays(size, batch)
        placed = self._device.place({**arrays, **sampling}, into=captured.buffer)
        captured.plans.begin(
            torch.from_numpy(arrays["seq_lens"]), torch.from_numpy(arrays["query_start_loc"])
        )
        captured.plans.make_again()
        hidden = captured.hidden[: batch.num_tokens]
        return PreparedStep(captured.graph, hidden, take_sampler(placed, sampling))

    def _capture(self, size: int) -> _Captured:
        device, arrays = self._device, _decode_arrays(size)
        # Room for the sampler's columns, which follow; they are no part of the graph.
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

        work()  # makes the plans, and whatever libraries make at their first call
        graph = device.capture(work, self._pool)
        return _Captured(graph, buffer, plans, hidden)


def _decode_arrays(size: int, batch: StepBatch | None = None) -> dict[str, Array]:
    """Return a decode batch of `size` sequences, of which those beyond `batch` have no tokens."""
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
