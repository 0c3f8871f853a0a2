"""Decode steps as CUDA graphs: hundreds of kernels started by one call.

A graph keeps the addresses and sizes that it was captured with. So there is one for each of a
ladder of batch sizes, a batch is filled up to the next size with sequences that have no tokens, and
what changes from step to step is copied to the addresses that the graph reads. Logits are not part
of a graph: each graph would keep memory for the logits of its size.

Where sequences of a step share blocks its attention has one launch more in each layer, and a graph
of its own, which is captured when the first such step comes: so a worker whose sequences share
nothing has none of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from worker_svc.device.base import Array
from worker_svc.device.cuda import CudaDevice, Graph
from worker_svc.device.placement import Placement
from worker_svc.layers.attention import AttentionMetadata, KVCaches
from worker_svc.layers.attention_plans import AttentionPlans
from worker_svc.models.interface import CausalLM
from worker_svc.steps.batch import Batch
from worker_svc.steps.gpu_rows import GpuRows
from worker_svc.steps.inputs import DeviceBatch
from worker_svc.steps.late_captures import LateCaptures
from worker_svc.steps.rows import SequenceRows

# What a graph reads of each sequence beside its place among the rows.
_DECODE_DTYPES: dict[str, type[np.generic]] = {
    "input_codes": np.int64,
    "positions": np.int64,
    "slot_mapping": np.int64,
    "rows": np.int64,
    "seq_lens": np.int32,
}
# Nothing is written to the cache.
NO_SLOT = -1


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Return the ladder of batch sizes: 1, 2, 4, then steps of eight, of sixteen from 256 on."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, max_num_seqs + 16, 16)]
    below = [size for size in sizes if size < max_num_seqs]
    return [*below, max_num_seqs]


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph.

    Attributes:
        graph: the graph.
        hidden: [size, hidden_size] last hidden states that it writes.
    """

    graph: Graph
    hidden: torch.Tensor

    def replay(self, num_sequences: int) -> torch.Tensor:
        """Start the graph; return the last hidden states [num_sequences, hidden_size].

        Mutates: the caches. The next step overwrites what was returned.
        """
        self.graph.replay()
        return self.hidden[:num_sequences]


@dataclass(frozen=True, slots=True)
class _Size:
    """The graphs of one size, and what they read.

    Attributes:
        size: sequences.
        inputs: what they read, and the arguments of sampling, which they do not.
        plans: the attention plans that they read.
        captured: the graphs, by `shared_blocks` of the plans; None where there can be none.
    """

    size: int
    inputs: Placement
    plans: AttentionPlans
    captured: dict[tuple[int, ...], _Captured | None]

    @property
    def first(self) -> _Captured:
        """The graph of steps that share nothing."""
        captured = next(iter(self.captured.values()))
        assert captured is not None, "it was captured before any step"
        return captured


class DecodeGraphs:
    """The decode steps of a model, graphs of each size.

    Args:
        device: the GPU that runs them.
        model: the model.
        held: the sequences.
        caches: caches of the model.
        rows: what the device keeps of the sequences.
        max_num_seqs: limit on the sequences of a batch.

    Attributes:
        pool: memory for what they compute on the way.
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
        self._of_size: dict[int, _Size] = {}
        self.pool = device.new_pool()
        self._late = LateCaptures(device, self.pool, model.heads.parallel.size)
        self._generation = rows.generation

    def capture(self) -> None:
        """Capture every size, the largest first: the smaller ones use its memory.

        Writes nothing to the caches.
        """
        for size in reversed(self._sizes):
            self._of_size[size] = self._prepare(size)

    def reserve_again(self) -> None:
        """Have the pool hold what the largest size takes beside the results of all sizes.

        Graphs that are captured later, of steps that share, find that there.
        """
        of_size = self._of_size[self._sizes[-1]]
        # The graph goes at once; the pool keeps its memory for as long as it has any graph.
        self._device.capture(partial(self._leave, of_size), self.pool)

    def fits(self, batch: Batch) -> bool:
        """Return whether there is a graph for a batch."""
        return batch.is_decode and batch.num_tokens <= self._sizes[-1]

    def place(self, batch: Batch) -> DeviceBatch:
        """Copy a decode batch to the memory that its graph reads.

        Mutates: the caches, where its graph is captured first: they get what the step will write.
        """
        if self._generation != self._rows.generation:
            # The tables have moved, and the graphs would read them at their old place.
            self._of_size.clear()
            self.capture()
            self.reserve_again()
            self._generation = self._rows.generation
        size = next(size for size in self._sizes if size >= batch.num_tokens)
        of_size, count = self._of_size[size], len(batch.sampling_rows)
        arrays = of_size.inputs.begin()
        _fill(arrays, batch)
        names = fill_sampling(arrays, self._held, batch)
        of_size.inputs.send()
        of_size.plans.begin(
            torch.from_numpy(arrays["seq_lens"]),
            torch.from_numpy(arrays["query_start_loc"]),
            torch.from_numpy(self._held.block_tables),
            torch.from_numpy(arrays["rows"]),
        )
        of_size.plans.make_again()
        shared_blocks = of_size.plans.shared_blocks
        if shared_blocks not in of_size.captured:
            of_size.captured[shared_blocks] = self._capture_late(of_size)
        captured = of_size.captured[shared_blocks]
        start = partial(self._compute, of_size) if captured is None else captured.replay
        placed = of_size.inputs.tensors
        return DeviceBatch(
            partial(start, batch.num_tokens),
            None,
            placed["sampling_rows"][:count],
            {name: placed[name][:count] for name in names},
        )

    def _prepare(self, size: int) -> _Size:
        """Return what graphs of a size read, and the graph of steps that share nothing."""
        examples = {
            **{name: np.empty(size, dtype) for name, dtype in _DECODE_DTYPES.items()},
            "query_start_loc": np.empty(size + 1, np.int32),
            **sampling_examples(self._held, size),
        }
        inputs = Placement(self._device, examples)
        arrays = inputs.begin()
        _fill(arrays)
        inputs.send()
        plans = AttentionPlans(max_seq_len=self._held.max_num_tokens)
        plans.begin(
            torch.from_numpy(arrays["seq_lens"]), torch.from_numpy(arrays["query_start_loc"])
        )
        of_size = _Size(size, inputs, plans, {})
        hidden = torch.empty(0)

        def work() -> None:
            nonlocal hidden
            hidden = self._compute(of_size, size)

        work()  # makes plans, and what libraries make at their first call
        graph = self._device.capture(work, self.pool)
        of_size.captured[plans.shared_blocks] = _Captured(graph, hidden)
        return of_size

    def _capture_late(self, of_size: _Size) -> _Captured | None:
        """Capture the step that was placed last; return None where that cannot be.

        It leaves its result where the first graph of the size does.

        Mutates: the caches.
        """
        self._leave(of_size)  # makes what libraries make at their first call
        graph = self._late.capture(partial(self._leave, of_size), of_size.size)
        return None if graph is None else _Captured(graph, of_size.first.hidden)

    def _leave(self, of_size: _Size) -> None:
        """Compute the step that was placed last into the result of the first graph of its size."""
        of_size.first.hidden.copy_(self._compute(of_size, of_size.size))

    def _compute(self, of_size: _Size, num_sequences: int) -> torch.Tensor:
        """Compute the step that was placed last, kernel by kernel; see _Captured.replay."""
        placed, plans = of_size.inputs.tensors, of_size.plans
        hidden = forward_placed(self._model, self._caches, self._rows, placed, plans)
        return hidden[:num_sequences]


def forward_placed(
    model: CausalLM,
    caches: KVCaches,
    rows: GpuRows,
    placed: Mapping[str, torch.Tensor],
    plans: AttentionPlans,
) -> torch.Tensor:
    """Start a model on a step at the addresses where it was placed.

    Mutates: the caches.

    Args:
        model: the model.
        caches: its caches.
        rows: what the device keeps of the sequences.
        placed: by name, tensors as in Batch; sequences and rows beyond the step are empty.
        plans: of its attention.

    Returns:
        [rows, hidden_size] last hidden states.
    """
    metadata = AttentionMetadata(
        caches=caches,
        num_tokens=len(placed["slot_mapping"]),
        slot_mapping=placed["slot_mapping"],
        block_tables=rows.block_tables.index_select(0, placed["rows"]),
        seq_lens=placed["seq_lens"],
        query_start_loc=placed["query_start_loc"],
        plans=plans,
    )
    return model.forward(rows.token_ids(placed["input_codes"]), placed["positions"], metadata)


def sampling_examples(held: SequenceRows, size: int) -> dict[str, Array]:
    """Return arrays like those that `fill_sampling` fills, for so many rows that sample."""
    rows = np.zeros(size, np.int64)
    return {"sampling_rows": rows, **held.sampling.columns(rows, rows)}


def fill_sampling(arrays: dict[str, Array], held: SequenceRows, batch: Batch) -> list[str]:
    """Fill arrays with what sampling reads of a batch; return the names of ops.sample's arguments.

    Args:
        arrays: by name, of as many rows as sample or more.
        held: the sequences.
        batch: the batch.
    """
    count = len(batch.sampling_rows)
    sampling = held.sampling.columns(batch.sampling_rows, batch.sampled_positions)
    for name, column in sampling.items():
        arrays[name][:count] = column
    arrays["sampling_rows"][:count] = batch.sampling_rows
    return list(sampling)


def _fill(arrays: dict[str, Array], batch: Batch | None = None) -> None:
    """Fill the arrays that a graph reads with a batch; sequences beyond it are empty.

    Args:
        arrays: by name, of the sizes and dtypes of Batch with as many rows as the graph's size.
        batch: decoding sequences; None for none.
    """
    count = 0 if batch is None else batch.num_tokens
    for name in _DECODE_DTYPES:
        if batch is not None:
            arrays[name][:count] = getattr(batch, name)
        arrays[name][count:] = NO_SLOT if name == "slot_mapping" else 0
    starts = arrays["query_start_loc"]
    starts[:count] = np.arange(count)
    starts[count:] = count
