"""Log-probabilities of sampled tokens and of the most probable ones."""

import numpy as np
import numpy.typing as npt
import torch

from quire.outputs import TokenLogprobs
from worker_svc.logit_rules import LogitRules


def token_logprobs(logits: torch.Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    """Return the log-probability of a token and of the most probable ones.

    Args:
        logits: [vocab_size] float32, as the model gave them.
        token_id: that was sampled.
        num_top: how many of the most probable to add; equals rank by token id, lowest first.
    """
    logprobs = _log_softmax(logits)
    token_ids = [token_id, *_top(logits, num_top)]
    return TokenLogprobs(
        token_ids=tuple(token_ids),
        logprobs=tuple(logprobs[token_ids].tolist()),
        sampled_rank=int((logits > logits[token_id]).sum()) + 1,
    )


def candidates(
    logits: torch.Tensor,
    num_candidates: int,
    rules: LogitRules | None,
    token_ids: npt.NDArray[np.int32],
) -> TokenLogprobs:
    """Return the most probable next tokens of a beam, after a first one that means nothing.

    Rules change the log-probabilities, which are not normalised again, as in `transformers`.

    Args:
        logits: [vocab_size] float32, as the model gave them.
        num_candidates: how many.
        rules: of the sequence.
        token_ids: [num_tokens] int32 of the sequence.
    """
    logprobs = _log_softmax(logits)
    if rules is not None:
        rules.apply(logprobs, token_ids)
    best = _top(logprobs, num_candidates)
    return TokenLogprobs((0, *best), (0.0, *logprobs[best].tolist()), 1)


def _log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return float32 log-probabilities.

    One row at a time and summed in float64, so that the company a row had changes no bit.
    """
    row = logits.double()
    return (row - row.logsumexp(0)).float()


def _top(values: torch.Tensor, count: int) -> list[int]:
    """Return the ids of the largest values, largest first; equals lowest id first."""
    if count == 0:
        return []
    threshold = values.topk(min(count, len(values))).values[-1]
    found = (values >= threshold).nonzero().flatten()
    order = torch.argsort(values[found], descending=True, stable=True)
    best: list[int] = found[order][:count].tolist()
    return best
