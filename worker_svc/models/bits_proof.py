"""A proof, on the loaded weights, that a model's bits do not depend on what runs beside a token.

Families of our own prove it in tests. Of a model that `transformers` runs, only its code knows what
it computes, so it is tried: a short text alone, in a step of many rows, and in chunks.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain, pairwise

import torch

from worker_svc.cache.shapes import empty_caches
from worker_svc.layers.attention import AttentionMetadata, KVCaches
from worker_svc.models.interface import CausalLM

_BLOCK_SIZE = 16
_LENGTH = 40
# Tokens of the sequences before and behind it in company: 130 rows in all.
_BEFORE, _BEHIND = 53, 37
_CUTS = (0, 1, 3, _LENGTH)


def find_dependence(
    model: CausalLM, dtype: torch.dtype, device: torch.device, limit: int
) -> str | None:
    """Return what changes bits of a text: "company", "chunks" or "head"; None if nothing does.

    Args:
        model: to run.
        dtype: of its cache.
        device: of the model.
        limit: of a sequence's length, in tokens.
    """
    run = _Run(model, dtype, device)
    lengths = [min(each, limit) for each in (_BEFORE, _LENGTH, _BEHIND)]
    before, text, behind = map(run.text, lengths, (3, 0, 5))
    first, length, last = lengths
    alone = run.step([(text, 0, length, 0)])
    expected = model.compute_logits(alone)
    crowd = run.step([(before, 0, first, 1), (text, 0, length, 2), (behind, 0, last, 3)])
    if not torch.equal(crowd[first : first + length], alone):
        return "company"
    cuts = sorted({min(cut, length) for cut in _CUTS})
    chunks = [run.step([(text, begin, end, 4)]) for begin, end in pairwise(cuts)]
    if not torch.equal(torch.cat(chunks), alone):
        return "chunks"
    rows = [model.compute_logits(each) for each in chunks]
    logits = model.compute_logits(crowd)[first : first + length]
    if not torch.equal(torch.cat(rows), expected) or not torch.equal(logits, expected):
        return "head"
    return None


class _Run:
    """Steps of a model over a cache of its own, with room for five sequences."""

    def __init__(self, model: CausalLM, dtype: torch.dtype, device: torch.device) -> None:
        self._model, self._device = model, device
        self._num_blocks = -(-max(_LENGTH, _BEFORE, _BEHIND) // _BLOCK_SIZE)
        make = partial(torch.empty, device=device)
        self._caches: KVCaches = empty_caches(
            model.num_layers, model.heads, dtype, _BLOCK_SIZE, 5 * self._num_blocks, make
        )
        for cache in chain.from_iterable(self._caches.stored):
            cache.zero_()

    def text(self, length: int, seed: int) -> torch.Tensor:
        """Return ids [length] int64."""
        ids = (torch.arange(length) * (7919 + seed) + 11 + seed) % self._model.vocab_size
        return ids.to(self._device)

    def step(self, sequences: Sequence[tuple[torch.Tensor, int, int, int]]) -> torch.Tensor:
        """Return the hidden states [rows, hidden_size] of a step.

        Args:
            sequences: of each its tokens, the first and behind the last of those to compute, and
                its place in the cache.
        """
        device, size = self._device, self._num_blocks
        counts = torch.tensor([0] + [end - begin for _, begin, end, _ in sequences])
        positions = torch.cat([torch.arange(begin, end) for _, begin, end, _ in sequences])
        places = torch.tensor([place for *_, place in sequences])
        first_slots = (places * size * _BLOCK_SIZE).repeat_interleave(counts[1:])
        metadata = AttentionMetadata(
            caches=self._caches,
            num_tokens=len(positions),
            slot_mapping=(first_slots + positions).to(device),
            block_tables=(places[:, None] * size + torch.arange(size)).int().to(device),
            seq_lens=torch.tensor([end for _, _, end, _ in sequences]).int().to(device),
            query_start_loc=counts.cumsum(0).int().to(device),
        )
        ids = torch.cat([tokens[begin:end] for tokens, begin, end, _ in sequences])
        return self._model.forward(ids, positions.to(device), metadata)
