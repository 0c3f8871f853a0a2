"""Drafts of a smaller model, whose cache has the same blocks as the model's and goes its own way.

Blocks are handed out, shared and freed once for both. But what a block of the draft model's cache
holds is neither copied nor swapped nor published with it: where the model's cache is ahead of it,
after a prefix hit, a preemption or steps without drafts, the draft model reads the tokens between.
So its cache costs no step that drafts nothing, and is right by one number for each sequence. Were
it wrong, drafts would be bad and outputs the same.
"""

import numpy as np
import torch

from worker_svc.arrays import IntArray
from worker_svc.device.base import Device
from worker_svc.models.interface import CausalLM
from worker_svc.parallel.group import ParallelGroup
from worker_svc.steps.batch import gather_batch
from worker_svc.steps.drafts import Drafter
from worker_svc.steps.inputs import Inputs
from worker_svc.steps.rows import SequenceRows

READ_TOKENS = 512
"""Tokens that are read in one step beside those of its drafts, so that it takes little longer; two
for each sequence, where that is more."""

MAX_TOKENS_BEHIND = 64
"""A sequence further behind gets no draft before it has been read: as many tokens as steps without
drafts bring between two trials of the scheduler, where a few sequences decode."""


class DraftModel:
    """Drafts greedily, one token of all sequences after the other (Leviathan 2023, alg. 1).

    Args:
        device: of the model.
        model: the draft model.
        inputs: brings batches to it, with its cache.
    """

    def __init__(self, device: Device, model: CausalLM, inputs: Inputs) -> None:
        self._device = device
        self._model = model
        self._inputs = inputs

    def __call__(self, held: SequenceRows, rows: IntArray, num_slots: IntArray) -> IntArray:
        """See Drafter; a sequence gets as many as it has slots, or none yet."""
        if len(rows) == 0:
            return num_slots
        computed, ends = held.num_draft_computed[rows], held.num_tokens[rows]
        counts = _share(ends - computed)
        ready = (counts == ends - computed) & (counts <= MAX_TOKENS_BEHIND)
        num_drafts = np.where(ready, num_slots, 0)
        reads = counts > 0
        hidden = self._forward(held, rows[reads], computed[reads], counts[reads])
        held.num_draft_computed[rows] += counts
        hidden = hidden[torch.from_numpy(np.cumsum(counts)[ready] - 1).to(hidden.device)]
        rows, ends, num_left = rows[ready], ends[ready], num_slots[ready]
        while len(rows) > 0:
            logits = self._model.compute_logits(hidden)
            (token_ids,) = self._device.fetch((logits.argmax(dim=-1),)).wait()
            held.token_ids[rows, ends] = token_ids
            goes_on = num_left > 1
            rows, ends, num_left = rows[goes_on], ends[goes_on] + 1, num_left[goes_on] - 1
            if len(rows) > 0:
                hidden = self._forward(held, rows, ends - 1, np.ones_like(rows))
                # Those of wrong drafts are taken back when the step is settled.
                held.num_draft_computed[rows] += 1
        return num_drafts

    def _forward(
        self, held: SequenceRows, rows: IntArray, computed: IntArray, counts: IntArray
    ) -> torch.Tensor:
        """Return the last hidden states [sum of counts, features] of tokens behind `computed`."""
        ids = tuple(rows.tolist())
        batch = gather_batch(held, ids, rows, counts, failed_ids=(), mark=0, computed=computed)
        # The model may have some token ids more.
        np.minimum(batch.input_codes, self._model.vocab_size - 1, out=batch.input_codes)
        return self._inputs.place(batch, layer_by_layer=False).forward()


def drafts_of_rank_0(drafter: Drafter | None, parallel: ParallelGroup, device: Device) -> Drafter:
    """Return what drafts on every rank as on rank 0, which sends its drafts to the others.

    Args:
        drafter: of rank 0, where each sequence gets as many as it has slots, or none.
        parallel: group of ranks.
        device: through which ranks exchange tensors.
    """

    def draft(held: SequenceRows, rows: IntArray, num_slots: IntArray) -> IntArray:
        if len(rows) == 0:
            return num_slots
        places = np.repeat(rows, num_slots), _behind(held.num_tokens[rows], num_slots)
        token_ids = np.full(len(places[0]), -1, np.int64)
        if drafter is not None:
            num_drafts = drafter(held, rows, num_slots)
            has_drafts = np.repeat(num_drafts > 0, num_slots)
            token_ids[has_drafts] = held.token_ids[places][has_drafts]
        values = torch.from_numpy(token_ids).to(device.torch_device)
        token_ids = parallel.broadcast(values).cpu().numpy()
        known = token_ids >= 0
        held.token_ids[places[0][known], places[1][known]] = token_ids[known]
        firsts = np.cumsum(num_slots) - num_slots
        found: IntArray = np.where(known[firsts], num_slots, 0)
        return found

    return draft


def _share(num_missing: IntArray) -> IntArray:
    """Return how many of the missing tokens [n] int64 of each sequence are read in one step.

    Those that miss least come first, since they can have drafts at once.
    """
    budget = max(READ_TOKENS, 2 * len(num_missing))
    order = np.argsort(num_missing, kind="stable")
    before = np.cumsum(num_missing[order]) - num_missing[order]
    counts: IntArray = np.empty_like(num_missing)
    counts[order] = np.clip(budget - before, 0, num_missing[order])
    return counts


def _behind(ends: IntArray, counts: IntArray) -> IntArray:
    """Return positions [sum of counts]: of each sequence so many from its end on."""
    starts = np.cumsum(counts) - counts
    positions: IntArray = np.arange(counts.sum()) + np.repeat(ends - starts, counts)
    return positions
