"""Mixed steps as CUDA graphs: chunks of prompts beside sequences that decode, drafts to be checked.

Such a step is filled up to one of a few numbers of rows with rows of no sequence, and the launches
of its attention, for which it is planned anew, to one of a few sizes with blocks that find no work.
There is a graph for each kind, number and sizes, that has come twice: what comes once is not worth
a capture, which takes as long as two such steps. The graphs used last are kept.

Which sequences there are, how many rows each has and which of these sample are not part of a graph:
what the model reads of them lies at fixed addresses, and attention's plan as well.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from worker_svc.device.base import Array
from worker_svc.device.cuda import CudaDevice, Graph
from worker_svc.device.placement import Placement
from worker_svc.layers.attention import KVCaches
from worker_svc.layers.attention_plans import AttentionPlans
from worker_svc.models.interface import CausalLM
from worker_svc.steps.batch import Batch
from worker_svc.steps.gpu_rows import GpuRows
from worker_svc.steps.graphs import NO_SLOT, fill_sampling, forward_placed, sampling_examples
from worker_svc.steps.inputs import DeviceBatch
from worker_svc.steps.late_captures import LateCaptures
from worker_svc.steps.rows import SequenceRows

# Numbers of rows. A longer step keeps a GPU busy for longer than a host takes to start it.
SIZES = (16, 32, 64, 128, 192, 256, 320, 384, 448, 512)
# A graph takes memory of the driver.
MAX_GRAPHS = 48
# Kinds of steps that came once and are remembered.
MAX_KINDS = 1024

# What a graph reads of each row, and of each sequence.
_OF_ROWS: dict[str, type[np.generic]] = {
    "input_codes": np.int64,
    "positions": np.int64,
    "slot_mapping": np.int64,
}
_OF_SEQUENCES: dict[str, type[np.generic]] = {"rows": np.int64, "seq_lens": np.int32}

# Rows, and the launches of attention.
Kind: TypeAlias = tuple[int, tuple[tuple[int, ...], ...]]


def most_rows(max_num_batched_tokens: int) -> int:
    """Return the rows of the largest graph of steps of so many tokens."""
    return next((size for size in SIZES if size >= max_num_batched_tokens), SIZES[-1])


@dataclass(frozen=True, slots=True)
class _Size:
    """What the graphs of a number of rows read.

    Attributes:
        inputs: arrays of rows and sequences, which rows sample, and the arguments of sampling;
            graphs do not read the last two.
        plans: the attention plans that they read.
    """

    inputs: Placement
    plans: AttentionPlans


class MixedGraphs:
    """The mixed steps of a model, graphs of those that come again.

    Args:
        device: the GPU that runs them.
        model: the model.
        held: the sequences.
        caches: caches of the model.
        rows: what the device keeps of the sequences.
        max_num_seqs: limit on the sequences of a batch.
        pool: of the device, for graphs that never run at the same time as these.

    Attributes:
        captured: the graph of each kind that has one; the one used last comes last.
    """

    def __init__(
        self,
        device: CudaDevice,
        model: CausalLM,
        held: SequenceRows,
        caches: KVCaches,
        rows: GpuRows,
        max_num_seqs: int,
        pool: Any,
    ) -> None:
        self._device = device
        self._model = model
        self._held = held
        self._caches = caches
        self._rows = rows
        self._max_num_seqs = max_num_seqs
        self._pool = pool
        self._late = LateCaptures(device, pool, model.heads.parallel.size)
        self._of_size: dict[int, _Size] = {}
        self.captured: dict[Kind, Graph] = {}
        self._came_once: dict[Kind, None] = {}  # the last one comes last
        self._failed: set[Kind] = set()
        self._reserve_graph: Graph | None = None
        self._rows_reserved: int | None = None
        self._generation = rows.generation
        # [most rows, hidden_size], where all graphs leave what they compute.
        self._hidden = torch.empty(0)

    def reserve(self, max_num_batched_tokens: int) -> None:
        """Have the pool hold what the largest of these graphs takes, before others are captured.

        Captured in the order in which they come, graphs of more and more rows would each add to a
        pool whose pieces are too small for them. Where decode steps have as many rows their first
        graph does the same. Makes all that graphs of any number of rows read. Writes nothing to the
        caches.

        Args:
            max_num_batched_tokens: limit on the tokens of a step.
        """
        largest = most_rows(max_num_batched_tokens)
        for size in [each for each in SIZES if each <= largest]:
            of_size = self._of_size[size] = self._prepare(size)
            arrays = of_size.inputs.begin()
            _fill(arrays)
            of_size.inputs.send()
            of_size.plans.begin(
                torch.from_numpy(arrays["seq_lens"]), torch.from_numpy(arrays["query_start_loc"])
            )
            self._run(of_size)  # makes plans
        if largest > self._max_num_seqs:
            self._rows_reserved = largest
            self.reserve_again()

    def reserve_again(self) -> None:
        """Have the pool hold as much beside what it has come to hold since `reserve`."""
        if self._rows_reserved is not None:
            # Never replayed; while it lives, torch keeps its memory in the pool.
            self._reserve_graph = self._device.capture(
                partial(self._run, self._of_size[self._rows_reserved]), self._pool
            )

    def fits(self, batch: Batch) -> bool:
        """Return whether a batch may be a graph."""
        return 0 < batch.num_tokens <= SIZES[-1] and len(batch.rows) <= self._max_num_seqs

    def place(self, batch: Batch) -> DeviceBatch:
        """Copy a batch to the memory that its graph reads."""
        if self._generation != self._rows.generation:
            # The tables have moved, and the graphs would read them at their old place.
            self._generation = self._rows.generation
            self.captured.clear()
            self._came_once.clear()
        size = most_rows(batch.num_tokens)
        of_size = self._of_size.get(size)
        if of_size is None:
            of_size = self._of_size[size] = self._prepare(size)
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
        placed, count = of_size.inputs.tensors, len(batch.sampling_rows)
        return DeviceBatch(
            partial(self._forward, size, batch.num_tokens),
            placed["sample_rows"][:count],
            placed["sampling_rows"][:count],
            {name: placed[name][:count] for name in names},
        )

    def _prepare(self, size: int) -> _Size:
        num_sequences = min(size, self._max_num_seqs)
        examples = {
            **{name: np.empty(size, dtype) for name, dtype in _OF_ROWS.items()},
            **{name: np.empty(num_sequences, dtype) for name, dtype in _OF_SEQUENCES.items()},
            "query_start_loc": np.empty(num_sequences + 1, np.int32),
            "sample_rows": np.empty(size, np.int64),
            **sampling_examples(self._held, size),
        }
        plans = AttentionPlans(self._held.max_num_tokens, max_query_len=size)
        return _Size(Placement(self._device, examples), plans)

    def _forward(self, size: int, num_tokens: int) -> torch.Tensor:
        """Start the step that was placed last; return the last hidden states [num_tokens, ...].

        Mutates: the caches. The next step overwrites what was returned.

        Raises:
            RuntimeError: the step, or on one of several ranks its capture, has failed.
        """
        of_size = self._of_size[size]
        kind = size, of_size.plans.launches
        graph = self.captured.pop(kind, None)
        if graph is not None:
            graph.replay()
            self.captured[kind] = graph
        else:
            # Makes plans that are not there, and what libraries make at their first call.
            self._run(of_size)
            self._note(of_size, (size, of_size.plans.launches))
        return self._hidden[:num_tokens]

    def _note(self, of_size: _Size, kind: Kind) -> None:
        """Note that a step of a kind was computed without a graph; capture it if it came again."""
        if kind in self._failed:
            return
        if kind not in self._came_once:
            self._came_once[kind] = None
            if len(self._came_once) > MAX_KINDS:
                del self._came_once[next(iter(self._came_once))]
            return
        del self._came_once[kind]
        graph = self._late.capture(partial(self._run, of_size), kind[0])
        if graph is None:
            self._failed.add(kind)
            return
        self.captured[kind] = graph
        if len(self.captured) > MAX_GRAPHS:
            del self.captured[next(iter(self.captured))]

    def _run(self, of_size: _Size) -> None:
        """Compute the step that was placed last, kernel by kernel."""
        hidden = forward_placed(
            self._model, self._caches, self._rows, of_size.inputs.tensors, of_size.plans
        )
        if len(self._hidden) == 0:
            self._hidden = hidden.new_empty(SIZES[-1], hidden.shape[1])
        self._hidden[: len(hidden)].copy_(hidden)


def _fill(arrays: dict[str, Array], batch: Batch | None = None) -> None:
    """Fill the arrays that a graph reads with a batch; rows and sequences beyond it are empty.

    Args:
        arrays: by name, of the sizes of a number of rows.
        batch: of no more rows; None for none.
    """
    num_rows, num_sequences = (0, 0) if batch is None else (batch.num_tokens, len(batch.rows))
    for names, count in ((_OF_ROWS, num_rows), (_OF_SEQUENCES, num_sequences)):
        for name in names:
            if batch is not None:
                arrays[name][:count] = getattr(batch, name)
            arrays[name][count:] = NO_SLOT if name == "slot_mapping" else 0
    if batch is None:
        arrays["query_start_loc"].fill(0)
        return
    starts, count = arrays["query_start_loc"], len(batch.query_start_loc)
    starts[:count] = batch.query_start_loc
    starts[count:] = batch.num_tokens
    arrays["sample_rows"][: len(batch.sample_rows)] = batch.sample_rows
