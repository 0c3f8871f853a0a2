"""Runs steps: orders in, tokens out."""

from collections import deque
from typing import Any

import numpy as np
import torch

from quire.contract.outputs import TokenLogprobs
from worker_svc import ops
from worker_svc.cache.engine import CacheEngine
from worker_svc.device.cuda import CudaDevice
from worker_svc.loading.loader import LoadedModel
from worker_svc.sampling.logprobs import StepReports, candidates, token_logprobs
from worker_svc.sampling.options import RowOptions
from worker_svc.sampling.rules import RuledRow, apply_rules
from worker_svc.sampling.sampler import sample_on_first_rank
from worker_svc.steps.batch import StepBatch
from worker_svc.steps.gpu_inputs import DevicePlacement
from worker_svc.steps.graphs import DecodeGraphs
from worker_svc.steps.inputs import HostPlacement, Placement, SamplerInputs, StepInputs
from worker_svc.steps.mirror import SequenceMirror
from worker_svc.steps.pending import PendingStep, StepMarks
from worker_svc.steps.step import PromptLogprobs, SchedulerOutputs

PROMPT_LOGITS_ROWS = 64


class ModelRunner:
    """A model, its cache and the mirror of its live sequences.

    On a GPU a step is started before the one before it has ended: `execute` returns at once, and
    tokens that only the GPU knows are settled in the mirror when they have come.

    Args:
        loaded: the model.
        block_size: tokens of a block.
        num_blocks: of the cache.
        swap_space_bytes: host memory for swapped blocks.
        max_num_seqs: of a step; None where no more than some will come. Graphs need it.
        enforce_eager: whether a GPU is to do without graphs.

    Attributes:
        cache_engine: the paged cache.
        mirror: the sequences held.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        block_size: int,
        num_blocks: int,
        swap_space_bytes: int = 0,
        max_num_seqs: int | None = None,
        *,
        enforce_eager: bool = False,
    ) -> None:
        self._model = loaded.model
        self._parallel = loaded.parallel
        self._device = device = loaded.device
        self.cache_engine = CacheEngine(loaded, block_size, num_blocks, swap_space_bytes)
        self.mirror = SequenceMirror(
            block_size,
            num_blocks,
            loaded.info.max_model_len,
            loaded.info.vocab_size,
            lambda num_rows: device.padded_rows(num_rows, loaded.dtype),
            loaded.info.eos_token_ids,
            # Twice: forks come before releases, and tables that grow stop the device.
            None if max_num_seqs is None else 2 * max_num_seqs,
        )
        # Started, and not yet settled in the mirror.
        self._pending: deque[PendingStep] = deque()
        self._graphs: DecodeGraphs | None = None
        self._placement: Placement
        caches, held = self.cache_engine.caches, self.mirror.held
        if isinstance(device, CudaDevice):
            placement = DevicePlacement(device, held, caches)
            self._placement = placement
            if max_num_seqs is not None and loaded.model.is_capturable and not enforce_eager:
                self._graphs = DecodeGraphs(
                    device, loaded.model, caches, held, placement.rows, max_num_seqs
                )
        else:
            self._placement = HostPlacement(device, held, caches)

    @torch.inference_mode()
    def capture_graphs(self) -> None:
        """Capture decode steps as graphs, where they are used."""
        if self._graphs is not None:
            self._graphs.capture()

    @torch.inference_mode()
    def execute(self, outputs: SchedulerOutputs) -> PendingStep:
        """Apply the orders of a step, start its batch and sample.

        Mutates: mirror and cache.

        Raises:
            InvalidRequestError: the orders do not fit what is held; the mirror is then undefined.
        """
        batch = self.begin_step(outputs)
        started, hidden, logits, sampler = self._start(batch)
        computed = self._device.mark()
        prompt_logprobs = self.prompt_logprobs(batch, hidden)
        token_ids, ok, reports = self.sample(batch, logits, sampler)
        marks = StepMarks(started, computed, self._device.mark())
        step = PendingStep(
            self._device,
            batch,
            self.mirror.advance(batch),
            # After the marks: when this has come, they have.
            self._device.fetch((token_ids, ok, *reports.tensors)),
            marks,
            self.cache_engine.mover.finish(),
            reports=reports if self._parallel.rank == 0 else None,
            prompt_logprobs=prompt_logprobs,
        )
        self._pending.append(step)
        if self._device.is_immediate:
            self._settle()
        return step

    def forget_sequences(self) -> None:
        """Forget every sequence, and what steps under way sample for them."""
        self._pending.clear()
        self.mirror.clear()

    def begin_step(self, outputs: SchedulerOutputs) -> StepBatch:
        """Apply the orders, begin to move blocks, and return the batch to run.

        Mutates: mirror and cache.
        """
        # Of two steps under way one has ended by now, or will before a third is of any use. And
        # what is forked must be known.
        self._settle(leave=0 if len(outputs.forks) > 0 else 1)
        self.mirror.apply(outputs)
        self.cache_engine.move(
            outputs.blocks_to_swap_out, outputs.blocks_to_swap_in, outputs.blocks_to_copy
        )
        return self.mirror.build_batch(outputs)

    def place(self, batch: StepBatch) -> StepInputs:
        """Bring a batch to where the model computes."""
        return self._placement.place(batch)

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Return the last hidden states [rows, hidden_size].

        Mutates: the cache.
        """
        if inputs.metadata.num_tokens == 0:
            return torch.empty(0, 0, device=self._device.torch_device)
        return self._model.forward(inputs.input_ids, inputs.positions, inputs.metadata)

    def compute_logits(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return logits [len(rows), vocab_size] float32 of some rows of the batch."""
        if len(rows) == 0:
            return torch.empty(0, self._model.vocab_size, device=self._device.torch_device)
        return self._model.compute_logits(hidden.index_select(0, rows))

    def prompt_logprobs(self, batch: StepBatch, hidden: torch.Tensor) -> tuple[PromptLogprobs, ...]:
        """Return the log-probabilities of the prompts' tokens that are asked for."""
        found = []
        for part in batch.prompt_parts:
            logprobs: list[TokenLogprobs] = []
            # Piece by piece: the logits of a long prompt would take gigabytes.
            for start in range(0, len(part.rows), PROMPT_LOGITS_ROWS):
                piece = slice(start, start + PROMPT_LOGITS_ROWS)
                placed = self._device.place(
                    {"rows": np.array(part.rows[piece]), "ids": np.array(part.token_ids[piece])}
                )
                logits = self.compute_logits(hidden, placed["rows"])
                logprobs += token_logprobs(logits, placed["ids"], part.num_top)
            found.append(PromptLogprobs(part.sequence_id, part.first_position, tuple(logprobs)))
        return tuple(found)

    def sample(
        self, batch: StepBatch, logits: torch.Tensor, sampler: SamplerInputs
    ) -> tuple[torch.Tensor, torch.Tensor, StepReports]:
        """Choose the next tokens.

        Mutates: the logits of sequences that have rules for them.

        Returns:
            token_ids [num_sampling] int64 and ok [num_sampling] bool where the model computes, and
            what is reported with them.
        """
        if len(batch.sampling_rows) == 0:
            return sampler.rows, sampler.rows.bool(), StepReports()
        # Only rank 0 knows what is sampled, and needs to.
        options = self.mirror.sampling_options(batch) if self._parallel.rank == 0 else []
        ruled = self._ruled_rows(batch, options)
        beams = self._candidates(batch, logits, options)
        asking = [(index, each) for index, each in options if each.num_logprobs is not None]
        if asking:
            where = self._device.place({"rows": np.array([index for index, _ in asking])})["rows"]
            # A copy: reports are of the logits before rules change them.
            raw_logits = logits.index_select(0, where)
        if ruled:
            apply_rules(logits, ruled, self._device.place)
        token_ids, ok = sample_on_first_rank(self._parallel, logits, sampler.columns)
        self._placement.keep_sampled(sampler, token_ids)
        if not asking:
            return token_ids, ok, StepReports(beams=beams)
        num_top = tuple(each.num_logprobs or 0 for _, each in asking)
        tensors = ops.top_logprobs(raw_logits, token_ids.index_select(0, where), max(num_top))
        return (
            token_ids,
            ok,
            StepReports(tuple(index for index, _ in asking), num_top, tensors, beams),
        )

    def _ruled_rows(
        self, batch: StepBatch, options: list[tuple[int, RowOptions]]
    ) -> list[RuledRow]:
        """Return the rows of the logits that have rules, with the tokens those are about."""
        if any(each.rules is not None for _, each in options):
            self._settle()
        return [
            RuledRow(index, each.rules, self.mirror.token_ids(int(batch.sampling_rows[index])))
            for index, each in options
            if each.rules is not None
        ]

    def _candidates(
        self, batch: StepBatch, logits: torch.Tensor, options: list[tuple[int, RowOptions]]
    ) -> dict[int, TokenLogprobs]:
        """Return the candidates of beams, by index of the sampling sequence.

        Waits for the logits, which costs little: no step is sent ahead of one of beams.
        """
        return {
            index: candidates(
                logits[index].to("cpu", copy=True),
                each.num_candidates,
                each.rules,
                self.mirror.token_ids(int(batch.sampling_rows[index])),
            )
            for index, each in options
            if each.num_candidates
        }

    def _start(self, batch: StepBatch) -> tuple[Any, torch.Tensor, torch.Tensor, SamplerInputs]:
        """Return the moment it began, hidden states, logits, and what the sampler needs."""
        # A graph does not wait for layers one by one: with blocks on their way it is not used.
        if self._graphs is not None and not self.cache_engine.mover.is_moving:
            prepared = self._graphs.prepare(batch)
            if prepared is not None:
                started = self._device.mark()
                hidden = prepared.run()
                return started, hidden, self._model.compute_logits(hidden), prepared.sampler
        inputs = self.place(batch)
        started = self._device.mark()
        hidden = self.forward(inputs)
        logits = self.compute_logits(hidden, inputs.sample_rows)
        return started, hidden, logits, inputs.sampler

    def _settle(self, leave: int = 0) -> None:
        """Wait for the steps under way but the last `leave`; write their tokens into the mirror."""
        while len(self._pending) > leave:
            step = self._pending.popleft()
            self.mirror.settle(step.batch, step.mark, *step.sampled())
