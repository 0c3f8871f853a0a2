"""From logits to tokens: rules, log-probabilities, sampling.

worker_svc.ops documents what all operations share.
"""

import torch
from torch import Tensor

from worker_svc.ops import compiled


def apply_penalties(
    logits: Tensor,
    token_ids: Tensor,
    num_prompt_tokens: Tensor,
    num_tokens: Tensor,
    repetition_penalty: Tensor,
    frequency_penalty: Tensor,
    presence_penalty: Tensor,
) -> None:
    """Make tokens that a sequence holds already less probable, or more.

    First the repetition penalty divides positive and multiplies other logits of tokens in prompt or
    output (Keskar et al. 2019); then frequency * n + presence is subtracted from those of tokens
    that the output holds n > 0 times. A row whose penalties are 1, 0 and 0 does not change, and its
    tokens are not read. The same bits on every instruction set.

    Args:
        logits: [N, V] float32.
        token_ids: [N, L] int32, a sequence's prompt and then its output; ids after the first
            num_tokens are not read. Ids on a GPU that are not in [0, V) have no effect.
        num_prompt_tokens: [N] int32.
        num_tokens: [N] int32, prompt and output, up to L.
        repetition_penalty: [N] float32, above 0; 1 is off.
        frequency_penalty: [N] float32; 0 is off.
        presence_penalty: [N] float32; 0 is off.

    Mutates:
        logits.
    """
    compiled._C.apply_penalties(
        logits,
        token_ids,
        num_prompt_tokens,
        num_tokens,
        repetition_penalty,
        frequency_penalty,
        presence_penalty,
    )


def apply_token_mask(logits: Tensor, bitmask: Tensor) -> None:
    """Forbid tokens, by a grammar for example: their logits become -inf.

    Args:
        logits: [N, V] float32.
        bitmask: [N, ceil(V / 32)] int32; bit i % 32 of word i // 32 is set where token i may come.

    Mutates:
        logits.
    """
    compiled._C.apply_token_mask(logits, bitmask)


def apply_soft_cap(logits: Tensor, cap: float) -> None:
    """Bound logits smoothly to (-cap, cap): cap * tanh(logits / cap) (Gemma Team 2024).

    Args:
        logits: [N, V] float32.
        cap: Above 0.

    Mutates:
        logits.
    """
    compiled._C.apply_soft_cap(logits, cap)


def top_logprobs(
    logits: Tensor, token_ids: Tensor, num_top: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the log-probability and rank of a token of each row, and the most probable tokens.

    Log-probabilities are computed in float64, from probabilities that are summed exactly as
    multiples of 2^-44 of the largest, and rounded once. The same bits on every instruction set.

    Args:
        logits: [N, V] float32; V up to 2^20.
        token_ids: [N] int64.
        num_top: number of most probable tokens to return, up to 1024; equals rank by token id,
            lowest first.

    Returns:
        Log-probabilities [N] float32 of the tokens and their ranks [N] int64, which is one more
        than the number of tokens of larger logits; then ids [N, min(num_top, V)] int64 of the most
        probable tokens and their log-probabilities, float32 of the same shape. Of a row that holds
        NaN or +inf or no finite value, log-probabilities are NaN and ids 0.
    """
    rows, vocab_size = logits.shape
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    ranks = torch.empty(rows, dtype=torch.int64, device=logits.device)
    shape = (rows, min(num_top, vocab_size))
    best = torch.empty(shape, dtype=torch.int64, device=logits.device)
    best_logprobs = torch.empty(shape, dtype=torch.float32, device=logits.device)
    compiled._C.top_logprobs(logprobs, ranks, best, best_logprobs, logits, token_ids)
    return logprobs, ranks, best, best_logprobs


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    sequence_index: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw one token per row.

    Temperature is applied first, then three filters, each on what the one before it left: min-p
    keeps tokens at least min_p times as probable as the best, top-k the k best, top-p the fewest
    best whose renormalised probability reaches top_p. Equal logits rank by token id, lowest first,
    so a filter keeps an exact number of tokens and top_k = 1 equals greedy.

    The draw is an exponential race (the Gumbel trick) with Philox4x32-10 numbers: a function of
    seed, sequence index, position and token id and of nothing else, with the same bits on every
    instruction set.

    Args:
        logits: [N, V] float32; -inf forbids a token.
        temperature: [N] float32; 0 takes the most probable token.
        top_k: [N] int32; 0 is off.
        top_p: [N] float32 in [0, 1]; 1 is off, 0 keeps one token.
        min_p: [N] float32 in [0, 1]; 0 is off.
        seed: [N] int64, the bits of a uint64.
        sequence_index: [N] int32, which of a request's sequences this is.
        position: [N] int64, of the token to be drawn.

    Returns:
        Token ids [N] int64, and [N] bool which is False where the logits hold NaN or +inf or no
        finite value, in which case the row's token is meaningless.
    """
    token_ids = logits.new_empty(logits.shape[0], dtype=torch.int64)
    ok = logits.new_empty(logits.shape[0], dtype=torch.bool)
    compiled._C.sample(
        token_ids,
        ok,
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        seed,
        sequence_index,
        position,
    )
    return token_ids, ok
