"""Runs steps: orders in, tokens out."""

import itertools
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from quire.outputs import TokenLogprobs
from worker_svc.cache_engine import CacheEngine
from worker_svc.inputs import SequenceMirror, StepBatch
from worker_svc.layers.attention import AttentionMetadata
from worker_svc.loader import LoadedModel
from worker_svc.logprobs import token_logprobs
from worker_svc.sampler import sample_on_first_rank
from worker_svc.steps import IntArray, SchedulerOutputs, StepOutcome


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What a step sampled.

    Attributes:
        token_ids: [num_sampling].
        ok: [num_sampling] False where logits were not finite; the token then means nothing.
        logprobs: parallel to `token_ids` if any of the sequences asked for them, else empty.
    """

    token_ids: IntArray
    ok: npt.NDArray[np.bool_]
    logprobs: tuple[TokenLogprobs, ...]


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
        sampled = self.finish_step(batch, logits)
        finished = time.perf_counter_ns()
        times = {
            "model_us": (computed - started) // 1000,
            "sample_us": (finished - computed) // 1000,
        }
        if self._parallel.rank > 0:
            return StepOutcome((), (), (), (), **times)
        ok, failed_ids, sampling_ids = sampled.ok, batch.failed_ids, batch.sampling_ids
        token_ids, logprobs = sampled.token_ids, sampled.logprobs
        if not ok.all():
            ids = np.array(sampling_ids, np.int64)
            failed_ids += tuple(ids[~ok].tolist())
            sampling_ids, token_ids = tuple(ids[ok].tolist()), token_ids[ok]
            logprobs = tuple(itertools.compress(logprobs, ok))
        return StepOutcome(sampling_ids, tuple(token_ids.tolist()), failed_ids, logprobs, **times)

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

    def finish_step(self, batch: StepBatch, logits: torch.Tensor) -> SampledTokens:
        """Sample and record the outcome.

        Mutates: mirror, and the logits of sequences that have rules for them.
        """
        logprobs: list[TokenLogprobs] = []
        if len(batch.sampling_rows) == 0:
            token_ids, ok = np.empty(0, np.int64), np.empty(0, np.bool_)
        else:
            wanted = self.mirror.wanted_logprobs(batch) if self._parallel.rank == 0 else []
            # A copy: logprobs are of the logits before rules change them.
            raw_logits = logits[[index for index, _ in wanted]]
            if self._parallel.rank == 0:
                self.mirror.apply_logit_rules(batch, logits)
            token_ids, ok = sample_on_first_rank(
                self._parallel,
                self.mirror.sampling,
                logits,
                batch.sampling_rows,
                self.mirror.sampled_positions(batch),
            )
            if wanted:
                logprobs = [TokenLogprobs()] * len(token_ids)
            for row, (index, num_top) in zip(raw_logits, wanted, strict=True):
                if ok[index]:
                    logprobs[index] = token_logprobs(row, int(token_ids[index]), num_top)
        self.mirror.commit(batch, token_ids, ok)
        return SampledTokens(token_ids, ok, tuple(logprobs))
