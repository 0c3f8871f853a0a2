"""Runs steps: orders in, tokens out."""

import time

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.cache_engine import CacheEngine
from worker_svc.inputs import SequenceMirror, StepBatch
from worker_svc.layers.attention import AttentionMetadata
from worker_svc.loader import LoadedModel
from worker_svc.sampler import sample_on_first_rank
from worker_svc.steps import IntArray, SchedulerOutputs, StepOutcome


class ModelRunner:
    """A model, its cache and the mirror of its live sequences.

    Attributes:
        cache_engine: the paged cache.
        mirror: the sequences held.
    """

    def __init__(self, loaded: LoadedModel, block_size: int, num_blocks: int) -> None:
        self._model = loaded.model
        self._parallel = loaded.parallel
        self.cache_engine = CacheEngine(loaded, block_size, num_blocks)
        self.mirror = SequenceMirror(
            block_size,
            num_blocks,
            loaded.info.max_model_len,
            loaded.info.vocab_size,
            loaded.dtype,
            loaded.info.eos_token_ids,
        )

    @torch.inference_mode()
    def execute(self, outputs: SchedulerOutputs) -> StepOutcome:
        """Apply the orders of a step, run its batch and sample.

        Mutates: mirror and cache.

        Raises:
            InvalidRequestError: the orders do not fit what is held; the mirror is then undefined.
        """
        batch = self.begin_step(outputs)
        started = time.perf_counter_ns()
        logits = self.forward(batch)
        computed = time.perf_counter_ns()
        token_ids, ok = self.finish_step(batch, logits)
        sampled = time.perf_counter_ns()
        failed_ids = batch.failed_ids
        sampling_ids = batch.sampling_ids
        if not ok.all():
            ids = np.array(sampling_ids, np.int64)
            failed_ids += tuple(ids[~ok].tolist())
            sampling_ids, token_ids = tuple(ids[ok].tolist()), token_ids[ok]
        is_first = self._parallel.rank == 0
        return StepOutcome(
            sequence_ids=sampling_ids if is_first else (),
            token_ids=tuple(token_ids.tolist()) if is_first else (),
            failed_sequence_ids=failed_ids if is_first else (),
            model_us=(computed - started) // 1000,
            sample_us=(sampled - computed) // 1000,
        )

    def begin_step(self, outputs: SchedulerOutputs) -> StepBatch:
        """Release, add, copy blocks, and return the batch to run.

        Mutates: mirror and cache.
        """
        self.mirror.apply(outputs)
        self.cache_engine.copy(outputs.blocks_to_copy)
        return self.mirror.build_batch(outputs)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """Return logits [num_sampling, vocab_size] float32.

        Mutates: the cache.
        """
        if batch.num_tokens == 0:
            return torch.empty(0, self._model.vocab_size)
        metadata = AttentionMetadata(
            caches=self.cache_engine.caches,
            num_tokens=batch.num_tokens,
            slot_mapping=batch.slot_mapping,
            block_tables=batch.block_tables,
            seq_lens=batch.seq_lens,
            query_start_loc=batch.query_start_loc,
        )
        hidden = self._model.forward(batch.input_ids, batch.positions, metadata)
        if len(batch.sampling_rows) == 0:
            return torch.empty(0, self._model.vocab_size)
        return self._model.compute_logits(hidden.index_select(0, batch.sample_rows))

    def finish_step(
        self, batch: StepBatch, logits: torch.Tensor
    ) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Sample and record the outcome.

        Mutates: mirror, and the logits of sequences that have rules for them.

        Returns:
            token_ids [num_sampling] and whether each sequence's logits were finite.
        """
        if len(batch.sampling_rows) == 0:
            token_ids, ok = np.empty(0, np.int64), np.empty(0, np.bool_)
        else:
            if self._parallel.rank == 0:
                self.mirror.apply_logit_rules(batch, logits)
            token_ids, ok = sample_on_first_rank(
                self._parallel,
                self.mirror.sampling,
                logits,
                batch.sampling_rows,
                self.mirror.sampled_positions(batch),
            )
        self.mirror.commit(batch, token_ids, ok)
        return token_ids, ok
