"""A short text that is run through a model before it is served, to compare its logits."""

from collections.abc import Iterator

import torch

from worker_svc.models.interface import CausalLM
from worker_svc.models.trial import Rows, Trial

PROBE_TOKENS = 24
# Largest error of the logits that rounding explains: root mean square, relative to the logits' own.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.03}
# As above, of a model that chooses experts: after another rounding it may choose others.
TOLERANCE_OF_CHOICES = {torch.float32: 1e-3, torch.bfloat16: 0.5, torch.float16: 0.5}


def probe_inputs(
    vocab_size: int, device: torch.device, length: int = PROBE_TOKENS
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and positions, [length] int64 each, of a fixed text."""
    positions = torch.arange(length)
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
    ids, _ = probe_inputs(model.vocab_size, device)
    trial = Trial(model, dtype, device, length=PROBE_TOKENS, places=1)
    for begin, end in ((0, PROBE_TOKENS - 1), (PROBE_TOKENS - 1, PROBE_TOKENS)):
        hidden = trial.step([Rows(ids, begin, end, 0)])
        yield hidden, model.compute_logits(hidden)


def relative_error(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the root mean square of the error, relative to that of what was expected."""
    error = (logits - expected).square().mean().sqrt()
    return float(error / expected.square().mean().sqrt())
