"""Steps of a model over a small cache of its own, before it is served."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch

from worker_svc.cache.shapes import empty_caches
from worker_svc.layers.attention import AttentionMetadata, KVCaches
from worker_svc.models.interface import CausalLM


@dataclass(frozen=True, slots=True)
class Rows:
    """What a step computes of a sequence.

    Attributes:
        tokens: [length] int64, of the sequence.
        begin: the first that is computed; those before it were, at the same place.
        end: behind the last.
        place: of the sequence in the cache.
    """

    tokens: torch.Tensor
    begin: int
    end: int
    place: int


class Trial:
    """A model, and a cache of zeros with room for some sequences.

    Args:
        model: to run.
        dtype: of its cache.
        device: of the model.
        length: of the longest sequence, in tokens.
        places: sequences that the cache holds.
        block_size: tokens of a block.
        is_scattered: whether a sequence's blocks lie apart and backwards, not one behind another.
    """

    def __init__(
        self,
        model: CausalLM,
        dtype: torch.dtype,
        device: torch.device,
        *,
        length: int,
        places: int,
        block_size: int = 16,
        is_scattered: bool = False,
    ) -> None:
        self._model, self._device, self._block_size = model, device, block_size
        num_blocks = places * -(-length // block_size)
        blocks = torch.arange(num_blocks)
        # Of each place its blocks, [places, blocks of a sequence].
        self._blocks = (
            blocks.flip(0).view(-1, places).t() if is_scattered else blocks.view(places, -1)
        )
        make = partial(torch.empty, device=device)
        self._caches: KVCaches = empty_caches(
            model.num_layers, model.heads, dtype, block_size, num_blocks, make
        )
        for cache in chain.from_iterable(self._caches.stored):
            cache.zero_()

    def text(self, length: int, seed: int = 0) -> torch.Tensor:
        """Return ids [length] int64 of a fixed text; another for each seed."""
        ids = (torch.arange(length) * (7919 + seed) + 11 + seed) % self._model.vocab_size
        return ids.to(self._device)

    def step(self, sequences: Sequence[Rows]) -> torch.Tensor:
        """Return the hidden states [rows, hidden_size] of a step, sequence by sequence.

        Mutates: the cache.
        """
        device, size = self._device, self._block_size
        lengths = torch.tensor([0] + [each.end - each.begin for each in sequences])
        positions = [torch.arange(each.begin, each.end) for each in sequences]
        blocks = [self._blocks[each.place] for each in sequences]
        slots = [
            own[where // size] * size + where % size
            for own, where in zip(blocks, positions, strict=True)
        ]
        metadata = AttentionMetadata(
            caches=self._caches,
            num_tokens=int(lengths.sum()),
            slot_mapping=torch.cat(slots).to(device),
            block_tables=torch.stack(blocks).int().to(device),
            seq_lens=torch.tensor([each.end for each in sequences]).int().to(device),
            query_start_loc=lengths.cumsum(0).int().to(device),
        )
        ids = torch.cat([each.tokens[each.begin : each.end] for each in sequences])
        return self._model.forward(ids, torch.cat(positions).to(device), metadata)
