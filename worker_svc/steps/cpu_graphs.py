"""Decode steps on the CPU as graphs: one call instead of ten for each layer.

A graph is made when a step first has its number of sequences, by that step.
"""

from functools import partial

import numpy as np
import torch

from worker_svc.device.cpu_graph import CpuGraph, GraphMemory, record
from worker_svc.layers.attention import AttentionMetadata, KVCaches
from worker_svc.models.interface import CausalLM
from worker_svc.steps.batch import Batch
from worker_svc.steps.rows import SequenceRows

MAX_GRAPH_SIZE = 128
"""Beyond as many sequences a step takes so long that calls do not count."""


class CpuDecodeGraphs:
    """The decode steps of a model, a graph for each number of sequences.

    Args:
        model: the model.
        held: the sequences.
        caches: caches of the model.
        max_num_seqs: limit on the sequences of a batch.
    """

    def __init__(
        self, model: CausalLM, held: SequenceRows, caches: KVCaches, max_num_seqs: int
    ) -> None:
        self._model = model
        self._held = held
        self._caches = caches
        self._max_size = size = min(max_num_seqs, MAX_GRAPH_SIZE)
        self._graphs: dict[int, CpuGraph] = {}
        self._memory = GraphMemory()
        # What graphs read; a graph of n sequences the first n rows.
        self._input_ids = np.zeros(size, np.int64)
        self._positions = np.zeros(size, np.int64)
        self._slot_mapping = np.zeros(size, np.int64)
        self._seq_lens = np.zeros(size, np.int32)
        self._block_tables = np.zeros((size, held.max_blocks), np.int32)
        self._query_start_loc = np.arange(size + 1, dtype=np.int32)

    @property
    def sizes(self) -> set[int]:
        """Numbers of sequences for which there is a graph."""
        return set(self._graphs)

    def fits(self, batch: Batch) -> bool:
        """Return whether a batch may be computed by a graph."""
        return batch.is_decode and batch.num_tokens <= self._max_size

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the last hidden states [num_tokens, hidden_size] of a decode batch.

        Mutates: the caches. The next step overwrites what was returned.
        """
        size, width = batch.num_tokens, batch.table_width
        self._input_ids[:size] = batch.input_codes
        self._positions[:size] = batch.positions
        self._slot_mapping[:size] = batch.slot_mapping
        self._seq_lens[:size] = batch.seq_lens
        self._block_tables[:size, :width] = self._held.block_tables[batch.rows, :width]
        graph = self._graphs.get(size)
        if graph is not None:
            return graph.replay()
        graph = self._graphs[size] = record(partial(self._run, size), self._memory)
        return graph.result

    def _run(self, size: int) -> torch.Tensor:
        metadata = AttentionMetadata(
            caches=self._caches,
            num_tokens=size,
            slot_mapping=torch.from_numpy(self._slot_mapping[:size]),
            block_tables=torch.from_numpy(self._block_tables[:size]),
            seq_lens=torch.from_numpy(self._seq_lens[:size]),
            query_start_loc=torch.from_numpy(self._query_start_loc[: size + 1]),
        )
        input_ids = torch.from_numpy(self._input_ids[:size])
        return self._model.forward(input_ids, torch.from_numpy(self._positions[:size]), metadata)
