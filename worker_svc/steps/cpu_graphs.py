"""Small steps on the CPU as graphs: one call instead of ten for each layer.

A graph keeps numbers of tokens and of sequences, and reads which tokens are whose: one serves the
decoding of some sequences, another that of one sequence and its drafts. It is recorded by the
second step of its shape, since many prompts have a shape of their own.
"""

from functools import partial

import numpy as np
import torch

from worker_svc.device.cpu_graph import CpuGraph, GraphMemory, record
from worker_svc.layers.attention import AttentionMetadata, KVCaches
from worker_svc.models.interface import CausalLM
from worker_svc.steps.batch import Batch
from worker_svc.steps.rows import SequenceRows

MAX_GRAPH_TOKENS = 128
"""A step of more tokens takes so long that calls do not count."""

MAX_GRAPHS = 256

Shape = tuple[int, int]
"""Tokens and sequences of a step."""


class CpuGraphs:
    """The small steps of a model, a graph for each shape.

    Args:
        model: the model.
        held: the sequences.
        caches: caches of the model.
    """

    def __init__(self, model: CausalLM, held: SequenceRows, caches: KVCaches) -> None:
        self._model = model
        self._held = held
        self._caches = caches
        self._graphs: dict[Shape, CpuGraph] = {}  # the one used last comes last
        self._seen: set[Shape] = set()
        self._memory = GraphMemory()
        # What graphs read, each as much as it needs.
        size = MAX_GRAPH_TOKENS
        self._input_ids = np.zeros(size, np.int64)
        self._positions = np.zeros(size, np.int64)
        self._slot_mapping = np.zeros(size, np.int64)
        self._seq_lens = np.zeros(size, np.int32)
        self._block_tables = np.zeros((size, held.max_blocks), np.int32)
        self._query_start_loc = np.zeros(size + 1, np.int32)

    @property
    def shapes(self) -> set[Shape]:
        """Shapes for which there is a graph."""
        return set(self._graphs)

    def fits(self, batch: Batch) -> bool:
        """Return whether a batch is to be computed here: whether its shape has come before."""
        shape = (batch.num_tokens, len(batch.rows))
        if not 0 < batch.num_tokens <= MAX_GRAPH_TOKENS:
            return False
        if shape in self._seen:
            return True
        self._seen.add(shape)
        return False

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the last hidden states [num_tokens, hidden_size] of a batch that fits.

        Mutates: the caches. The next step overwrites what was returned.
        """
        size, num_seqs, width = batch.num_tokens, len(batch.rows), batch.table_width
        self._input_ids[:size] = batch.input_codes
        self._positions[:size] = batch.positions
        self._slot_mapping[:size] = batch.slot_mapping
        self._seq_lens[:num_seqs] = batch.seq_lens
        self._query_start_loc[: num_seqs + 1] = batch.query_start_loc
        self._block_tables[:num_seqs, :width] = self._held.block_tables[batch.rows, :width]
        shape = (size, num_seqs)
        graph = self._graphs.pop(shape, None)
        if graph is not None:
            self._graphs[shape] = graph
            return graph.replay()
        if len(self._graphs) == MAX_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        graph = self._graphs[shape] = record(partial(self._run, *shape), self._memory)
        return graph.result

    def _run(self, size: int, num_seqs: int) -> torch.Tensor:
        metadata = AttentionMetadata(
            caches=self._caches,
            num_tokens=size,
            slot_mapping=torch.from_numpy(self._slot_mapping[:size]),
            block_tables=torch.from_numpy(self._block_tables[:num_seqs]),
            seq_lens=torch.from_numpy(self._seq_lens[:num_seqs]),
            query_start_loc=torch.from_numpy(self._query_start_loc[: num_seqs + 1]),
        )
        input_ids = torch.from_numpy(self._input_ids[:size])
        return self._model.forward(input_ids, torch.from_numpy(self._positions[:size]), metadata)
