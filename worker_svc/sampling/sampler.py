"""The sampler: a step's logits go in, its tokens and their reports come out."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from quire.contract.outputs import TokenLogprobs
from quire.contract.steps import PromptLogprobs
from worker_svc import ops
from worker_svc.arrays import IntArray
from worker_svc.device.base import Device
from worker_svc.parallel.group import ParallelGroup
from worker_svc.sampling.grammars import Grammars, MaskJob, PendingMasks
from worker_svc.sampling.logprobs import SampledLogprobs, candidates, token_logprobs
from worker_svc.sampling.options import RowOptions
from worker_svc.sampling.rules import RuledRow, apply_rules
from worker_svc.steps.batch import Batch
from worker_svc.steps.rows import SequenceRows

TokenArray = npt.NDArray[np.int32]

# The logits of a whole long prompt would take gigabytes.
PROMPT_LOGITS_ROWS = 64


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens of a step, on the device that computes.

    Attributes:
        token_ids: [num_sampling] int64.
        ok: [num_sampling] bool, whether the logits were finite; if not, the token means nothing.
        prompt_logprobs: (sequence id, what was computed of its prompt) of those that asked for it.
        logprobs: reports of these tokens; None on ranks above 0, which report no tokens either.
        reported: tensors that `logprobs` reads once they are on the host.
        grammar_ids: sequences under a grammar.
        barred: rows of the logits whose rules left no token, so that `ok` is False.
        failed_grammar_ids: sequences whose grammar has failed, so that `ok` is False.
    """

    token_ids: torch.Tensor
    ok: torch.Tensor
    prompt_logprobs: tuple[tuple[int, PromptLogprobs], ...]
    logprobs: SampledLogprobs | None
    reported: tuple[torch.Tensor, ...] = ()
    grammar_ids: frozenset[int] = frozenset()
    barred: frozenset[int] = frozenset()
    failed_grammar_ids: frozenset[int] = frozenset()


class Sampler:
    """Chooses the next token of each sequence of a batch.

    Args:
        parallel: the ranks: rank 0 draws and sends the tokens to the others.
        device: the device that computes.
        held: the sequences with their tokens and sampling parameters.
        compute_logits: returns the logits [n, vocab_size] float32 of hidden states
            [n, hidden_size]; every rank must call it at the same time.
        settle: writes all tokens that earlier steps sampled into `held`; waits for them.
        grammars: of sequences; None on ranks above 0.
    """

    def __init__(
        self,
        parallel: ParallelGroup,
        device: Device,
        held: SequenceRows,
        compute_logits: Callable[[torch.Tensor], torch.Tensor],
        settle: Callable[[], None],
        grammars: Grammars | None = None,
    ) -> None:
        self._parallel = parallel
        self._device = device
        self._held = held
        self._compute_logits = compute_logits
        self._settle = settle
        self._grammars = grammars
        # Of the batch that is being computed, where they could be started before it.
        self._masks: PendingMasks | None = None

    def start_masks(self, batch: Batch) -> None:
        """Begin to work out what grammars allow, where all tokens before are known already.

        Where they are not, on a GPU, `sample` does so while the GPU computes.
        """
        self._masks = None
        if self._grammars is not None and self._device.is_immediate:
            self._masks = self._pending_masks(self._grammars, batch, self._options(batch))

    def sample(
        self,
        batch: Batch,
        hidden: torch.Tensor,
        logits: torch.Tensor,
        columns: dict[str, torch.Tensor],
    ) -> Sampled:
        """Apply the rules of each sequence, draw its token, and collect what it asked to know.

        Mutates: the logits of sequences that have rules.

        Args:
            batch: the batch.
            hidden: [rows, hidden_size] last hidden states of the batch; read for log-probabilities
                of prompts.
            logits: [num_sampling, vocab_size] float32; ranks above 0 use only their number of rows.
            columns: arguments of ops.sample beside the logits, [num_sampling] each, by name.
        """
        prompt_logprobs = self.prompt_logprobs(batch, hidden)
        # Only rank 0 knows what is sampled, and needs to.
        is_first_rank = self._parallel.rank == 0
        options = self._options(batch) if is_first_rank else []
        if len(batch.sampling_rows) == 0:
            none = hidden.new_empty(0, dtype=torch.int64)
            logprobs = SampledLogprobs() if is_first_rank else None
            return Sampled(none, none.bool(), prompt_logprobs, logprobs)
        beams = self._candidates(batch, logits, options)
        ruled = self._ruled_rows(batch, options) if is_first_rank else []
        asking = [(index, each) for index, each in options if each.num_logprobs is not None]
        if asking:
            where = self._device.place({"rows": np.array([index for index, _ in asking])})["rows"]
            # A copy: reports are of the logits before rules change them.
            raw_logits = logits.index_select(0, where)
        barred = apply_rules(logits, ruled, self._device.place) if ruled else frozenset[int]()
        if self._parallel.size == 1:
            token_ids, ok = ops.sample(logits, **columns)
        else:
            token_ids, ok = self._sample_on_first_rank(logits, columns)
        if not is_first_rank:
            return Sampled(token_ids, ok, prompt_logprobs, None)
        sampled = Sampled(
            token_ids,
            ok,
            prompt_logprobs,
            SampledLogprobs(beams=beams),
            grammar_ids=frozenset(
                batch.sampling_ids[each.index] for each in ruled if each.has_grammar
            ),
            barred=barred,
            failed_grammar_ids=frozenset(
                batch.sampling_ids[each.index] for each in ruled if each.has_failed_grammar
            ),
        )
        if not asking:
            return sampled
        num_top = tuple(each.num_logprobs or 0 for _, each in asking)
        tensors = ops.top_logprobs(raw_logits, token_ids.index_select(0, where), max(num_top))
        logprobs = SampledLogprobs(tuple(index for index, _ in asking), num_top, beams)
        return replace(sampled, logprobs=logprobs, reported=tensors)

    def prompt_logprobs(
        self, batch: Batch, hidden: torch.Tensor
    ) -> tuple[tuple[int, PromptLogprobs], ...]:
        """Return, by sequence id, the log-probabilities of prompt tokens that were asked for.

        Waits for them.

        Args:
            batch: the batch.
            hidden: [rows, hidden_size] its last hidden states.
        """
        options = self._held.sampling.options
        if not options:
            return ()
        found = []
        for index, row in enumerate(batch.rows.tolist()):
            asked = options.get(row)
            if asked is None or asked.num_prompt_logprobs is None:
                continue
            # The row of a token predicts the next one.
            end = int(batch.seq_lens[index]) + 1
            first = end - int(batch.num_scheduled_tokens[index])
            token_ids = self._held.token_ids[row, first : min(end, asked.num_prompt_tokens)]
            if len(token_ids) > 0:
                rows = int(batch.query_start_loc[index]) + np.arange(len(token_ids))
                logprobs = self._logprobs_of(hidden, rows, token_ids, asked.num_prompt_logprobs)
                found.append((batch.sequence_ids[index], PromptLogprobs(first, logprobs)))
        return tuple(found)

    def _logprobs_of(
        self, hidden: torch.Tensor, rows: IntArray, token_ids: TokenArray, num_top: int
    ) -> tuple[TokenLogprobs, ...]:
        """Return the log-probabilities of token_ids [n] that rows [n] of `hidden` predict."""
        logprobs: list[TokenLogprobs] = []
        for start in range(0, len(rows), PROMPT_LOGITS_ROWS):
            piece = slice(start, start + PROMPT_LOGITS_ROWS)
            logprobs += self._logprobs_of_piece(hidden, rows[piece], token_ids[piece], num_top)
        return tuple(logprobs)

    def _logprobs_of_piece(
        self, hidden: torch.Tensor, rows: IntArray, token_ids: TokenArray, num_top: int
    ) -> list[TokenLogprobs]:
        """See `_logprobs_of`; a call of its own, so that no other piece's logits are held."""
        placed = self._device.place({"rows": rows, "ids": token_ids.astype(np.int64)})
        logits = self._compute_logits(hidden.index_select(0, placed["rows"]))
        return token_logprobs(logits, placed["ids"], num_top)

    def _options(self, batch: Batch) -> list[tuple[int, RowOptions]]:
        """Return (index among the sampling sequences, options) of the sequences that have any."""
        options = self._held.sampling.options
        if not options:
            return []
        rows = enumerate(batch.sampling_rows.tolist())
        return [(index, options[row]) for index, row in rows if row in options]

    def _ruled_rows(self, batch: Batch, options: list[tuple[int, RowOptions]]) -> list[RuledRow]:
        """Return the rows of the logits that have rules, with the tokens that the rules read."""
        if not any(each.rules is not None for _, each in options):
            return []
        self._settle()
        if self._masks is None and self._grammars is not None:
            self._masks = self._pending_masks(self._grammars, batch, options)
        pending, self._masks = self._masks, None
        masks = {} if pending is None else pending.wait()
        failed_rows = frozenset[int]() if pending is None else pending.failed_rows
        return [
            RuledRow(
                index,
                each.rules,
                self._token_ids(batch, index),
                masks.get(index),
                index in failed_rows,
            )
            for index, each in options
            if each.rules is not None
        ]

    def _pending_masks(
        self, grammars: Grammars, batch: Batch, options: list[tuple[int, RowOptions]]
    ) -> PendingMasks | None:
        """Begin to fill the masks of the rows that have a grammar; None if there are none."""
        indices: dict[int, list[int]] = {}
        for index, each in options:
            if each.grammar is not None:
                indices.setdefault(int(batch.sampling_rows[index]), []).append(index)
        jobs = []
        for row, places in indices.items():
            grammar = self._held.sampling.options[row].grammar
            assert grammar is not None, "it was there just now"
            jobs.append(MaskJob(grammar, places, self._token_ids(batch, places[-1])))
        return grammars.start_masks(jobs) if jobs else None

    def _candidates(
        self, batch: Batch, logits: torch.Tensor, options: list[tuple[int, RowOptions]]
    ) -> dict[int, TokenLogprobs]:
        """Return the candidates of beams, by index of the sampling sequence.

        Waits for the logits, which costs little: the scheduler sends no step ahead of one with
        beams.
        """
        return {
            index: candidates(
                logits[index].to("cpu", copy=True),
                each.num_candidates,
                each.rules,
                self._token_ids(batch, index),
            )
            for index, each in options
            if each.num_candidates
        }

    def _token_ids(self, batch: Batch, index: int) -> TokenArray:
        """Return the tokens [num_tokens] int32 of a sampling sequence, a view."""
        return self._held.token_ids[batch.sampling_rows[index], : batch.sampled_positions[index]]

    def _sample_on_first_rank(
        self, logits: torch.Tensor, columns: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return token_ids [num_sampling] int64 and ok [num_sampling] bool, the same on all ranks.

        See Sampled for their meaning, and `sample` for the arguments.
        """
        message = torch.zeros(2, len(logits), dtype=torch.int64, device=logits.device)
        if self._parallel.rank == 0:
            message[0], message[1] = ops.sample(logits, **columns)
        self._parallel.broadcast(message)
        return message[0], message[1].bool()
