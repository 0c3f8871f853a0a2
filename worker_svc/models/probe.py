"""A short text that is run through a model before it is served, to compare its logits."""

from collections.abc import Iterator
from functools import partial
from itertools import chain

import torch

from worker_svc.cache.shapes import empty_caches
from worker_svc.layers.attention import AttentionMetadata
from worker_svc.models.interface import CausalLM

PROBE_TOKENS = 24
_BLOCK_SIZE = 16
# Largest error of the logits that rounding explains: root mean square, relative to the logits' own.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.03}
# As above, of a model that chooses experts: after another rounding it may choose others.
TOLERANCE_OF_CHOICES = {torch.float32: 1e-3, torch.bfloat16: 0.5, torch.float16: 0.5}


def probe_inputs(vocab_size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and positions, [PROBE_TOKENS] int64 each, of a fixed text."""
    positions = torch.arange(PROBE_TOKENS)
    ids = (positions * 7919 + 11) % vocab_size
    return ids.to(device), positions.to(device)


def run_probe(
    model: CausalLM, dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Run the text in two steps over a paged cache, the last token by itself.

    Args:
        model: to run.
        dtype: of its cache.
        device: of the model.

    Yields:
        Of each step the hidden states, as `forward` returns them, and the logits [rows, vocab_size]
        float32.
    """
    ids, positions = probe_inputs(model.vocab_size, device)
    make = partial(torch.empty, device=device)
    caches = empty_caches(model.num_layers, model.heads, dtype, _BLOCK_SIZE, 2, make)
    for cache in chain.from_iterable(caches.stored):
        cache.zero_()

    def int32(values: list[int] | list[list[int]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32).to(device)

    for start, end in ((0, PROBE_TOKENS - 1), (PROBE_TOKENS - 1, PROBE_TOKENS)):
        metadata = AttentionMetadata(
            caches=caches,
            num_tokens=end - start,
            slot_mapping=positions[start:end].clone(),
            block_tables=int32([[0, 1]]),
            seq_lens=int32([end]),
            query_start_loc=int32([0, end - start]),
        )
        hidden = model.forward(ids[start:end], positions[start:end], metadata)
        yield hidden, model.compute_logits(hidden)


def relative_error(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the root mean square of the error, relative to that of what was expected."""
    error = (logits - expected).square().mean().sqrt()
    return float(error / expected.square().mean().sqrt())
