"""What changes logits, and log-probabilities, a row at a time and in torch's own operations."""

import numpy as np
import numpy.typing as npt
import torch

from quire.contract.outputs import TokenLogprobs


def penalise(
    logits: torch.Tensor,
    token_ids: npt.NDArray[np.int32],
    num_prompt_tokens: int,
    repetition: float,
    frequency: float,
    presence: float,
) -> None:
    """Apply penalties to a row [vocab_size] float32 of a sequence of token ids.

    Mutates: logits.
    """
    if repetition != 1.0:
        seen = torch.from_numpy(np.unique(token_ids))
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / repetition, values * repetition)
    if frequency != 0.0 or presence != 0.0:
        output, counts = np.unique(token_ids[num_prompt_tokens:], return_counts=True)
        logits[torch.from_numpy(output)] -= frequency * torch.from_numpy(counts) + presence


def token_logprobs(logits: torch.Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    """Return the log-probability of a token of a row [vocab_size], and of the most probable ones.

    Equals rank by token id, lowest first.
    """
    row = logits.double()
    logprobs = (row - row.logsumexp(0)).float()
    order = torch.argsort(logits, descending=True, stable=True)[:num_top]
    ids = [token_id, *order.tolist()]
    rank = int((logits > logits[token_id]).sum()) + 1
    return TokenLogprobs(tuple(ids), tuple(logprobs[ids].tolist()), rank)
