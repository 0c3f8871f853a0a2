"""Log-probabilities of sampled tokens and of the most probable ones."""

import torch

from quire.outputs import TokenLogprobs


def token_logprobs(logits: torch.Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    """Return the log-probability of a token and of the most probable ones.

    One row at a time and summed in float64, so that the company a row had changes no bit.

    Args:
        logits: [vocab_size] float32, as the model gave them.
        token_id: that was sampled.
        num_top: how many of the most probable to add; equals rank by token id, lowest first.
    """
    row = logits.double()
    logprobs = (row - row.logsumexp(0)).float()
    token_ids = [token_id]
    if num_top > 0:
        threshold = logits.topk(min(num_top, len(logits))).values[-1]
        candidates = (logits >= threshold).nonzero().flatten()
        order = torch.argsort(logits[candidates], descending=True, stable=True)
        token_ids += candidates[order][:num_top].tolist()
    return TokenLogprobs(
        token_ids=tuple(token_ids),
        logprobs=tuple(logprobs[token_ids].tolist()),
        sampled_rank=int((logits > logits[token_id]).sum()) + 1,
    )
