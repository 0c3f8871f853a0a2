"""Runs steps: orders in, tokens out."""

import itertools
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from quire.outputs import TokenLogprobs
from worker_svc.batch import StepBatch
from worker_svc.cache_engine import CacheEngine
from worker_svc.layers.attention import AttentionMetadata
from worker_svc.loader import LoadedModel
from worker_svc.logprobs import token_logprobs
from worker_svc.mirror import SequenceMirror
from worker_svc.sampler import sample_on_first_rank
from worker_svc.steps import IntArray, PromptLogprobs, SchedulerOutputs, StepOutcome

PROMPT_LOGITS_ROWS = 64


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

    def __init__(
        self, loaded: LoadedModel, block_size: int, num_blocks: int, swap_space_bytes: int = 0
    ) -> None:
        self._model = loaded.model
        self._parallel = loaded.parallel
        self.cache_engine = CacheEngine(loaded, block_size, num_blocks, swap_space_bytes)
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
        hidden = self.forward(batch)
        logits = self.compute_logits(hidden, batch.sample_rows)
        computed = time.perf_counter_ns()
        prompt_logprobs = self.prompt_logprobs(batch, hidden)
        sampled = self.finish_step(batch, logits)
        finished = time.perf_counter_ns()
        times = (
            (computed - started) // 1000,
            (finished - computed) // 1000,
            self.cache_engine.mover.finish(),
        )
        if self._parallel.rank > 0:
            return StepOutcome((), (), (), (), *times)
        ok, failed_ids, sampling_ids = sampled.ok, batch.failed_ids, batch.sampling_ids
        token_ids, logprobs = sampled.token_ids, sampled.logprobs
        if not ok.all():
            ids = np.array(sampling_ids, np.int64)
            failed_ids += tuple(ids[~ok].tolist())
            sampling_ids, token_ids = tuple(ids[ok].tolist()), token_ids[ok]
            logprobs = tuple(itertools.compress(logprobs, ok))
        return StepOutcome(
            sampling_ids,
            tuple(token_ids.tolist()),
            failed_ids,
            logprobs,
            *times,
            prompt_logprobs,
        )

    def begin_step(self, outputs: SchedulerOutputs) -> StepBatch:
        """Apply the orders, begin to move blocks, and return the batch to run.

        Mutates: mirror and cache.
        """
        self.mirror.apply(outputs)
        self.cache_engine.move(
            outputs.blocks_to_swap_out, outputs.blocks_to_swap_in, outputs.blocks_to_copy
        )
        return self.mirror.build_batch(outputs)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """Return the last hidden states [rows, hidden_size].

        Mutates: the cache.
        """
        if batch.num_tokens == 0:
            return torch.empty(0, 0)
        metadata = AttentionMetadata(
            caches=self.cache_engine.caches,
            num_tokens=batch.num_tokens,
            slot_mapping=batch.slot_mapping,
            block_tables=batch.block_tables,
            seq_lens=batch.seq_lens,
            query_start_loc=batch.query_start_loc,
        )
        return self._model.forward(batch.input_ids, batch.positions, metadata)

    def compute_logits(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return logits [len(rows), vocab_size] float32 of some rows of the batch."""
        if len(rows) == 0:
            return torch.empty(0, self._model.vocab_size)
        return self._model.compute_logits(hidden.index_select(0, rows))

    def prompt_logprobs(self, batch: StepBatch, hidden: torch.Tensor) -> tuple[PromptLogprobs, ...]:
        """Return the log-probabilities of the prompts' tokens that are asked for."""
        found = []
        for part in batch.prompt_parts:
            logprobs: list[TokenLogprobs] = []
            # Piece by piece: the logits of a long prompt would take gigabytes.
            for start in range(0, len(part.rows), PROMPT_LOGITS_ROWS):
                rows = part.rows[start : start + PROMPT_LOGITS_ROWS]
                logits = self.compute_logits(hidden, torch.tensor(rows))
                token_ids = part.token_ids[start : start + PROMPT_LOGITS_ROWS]
                for row, token_id in zip(logits, token_ids, strict=True):
                    logprobs.append(token_logprobs(row, token_id, part.num_top))
            found.append(PromptLogprobs(part.sequence_id, part.first_position, tuple(logprobs)))
        return tuple(found)

    def finish_step(self, batch: StepBatch, logits: torch.Tensor) -> SampledTokens:
        """Sample and record the outcome.

        Mutates: mirror, and the logits of sequences that have rules for them.
        """
        logprobs: list[TokenLogprobs] = []
        if len(batch.sampling_rows) == 0:
            token_ids, ok = np.empty(0, np.int64), np.empty(0, np.bool_)
        else:
            # Only rank 0 knows what is sampled, and needs to.
            options = self.mirror.sampling_options(batch) if self._parallel.rank == 0 else []
            reporting = [(index, each) for index, each in options if each.reports]
            # A copy: reports are of the logits before rules change them.
            raw_logits = logits[[index for index, _ in reporting]]
            for index, each in options:
                each.apply_rules(
                    logits[index], self.mirror.token_ids(int(batch.sampling_rows[index]))
                )
            token_ids, ok = sample_on_first_rank(
                self._parallel,
                self.mirror.sampling,
                logits,
                batch.sampling_rows,
                self.mirror.sampled_positions(batch),
            )
            if reporting:
                logprobs = [TokenLogprobs()] * len(token_ids)
            for row, (index, each) in zip(raw_logits, reporting, strict=True):
                if ok[index]:
                    tokens = self.mirror.token_ids(int(batch.sampling_rows[index]))
                    logprobs[index] = each.report(row, int(token_ids[index]), tokens)
        self.mirror.commit(batch, token_ids, ok)
        return SampledTokens(token_ids, ok, tuple(logprobs))
