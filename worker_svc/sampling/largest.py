"""The largest step: as many tokens as one may have, of which as many rows sample as may.

They ask for all that takes memory: rules that change logits, reports, and of a prompt as well.
"""

from dataclasses import replace

import numpy as np

from quire.contract.sampling_params import (
    MAX_LOGIT_BIAS_TOKENS,
    MAX_LOGPROBS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOKENS,
    SamplingParams,
)
from quire.contract.steps import SequenceState
from worker_svc.arrays import IntArray
from worker_svc.steps.batch import Batch, gather_batch
from worker_svc.steps.rows import SequenceRows


def largest_batch(
    held: SequenceRows,
    num_tokens: int,
    max_num_seqs: int,
    num_sampled: int,
    max_model_len: int,
    vocab_size: int,
) -> Batch:
    """Return the batch of the largest step, which reads block 0 for every context and writes none.

    One sequence is a prompt as long as the step allows; it is the first to be as long as the model
    allows, and others are prompts where that leaves tokens. The rest decode. As many tokens are
    drafts as rows may sample beside those of sequences.

    Mutates: held, which gets the sequences.

    Args:
        held: no sequences.
        num_tokens: limit on the tokens.
        max_num_seqs: limit on the sequences.
        num_sampled: limit on the rows that sample, those of drafts among them.
        max_model_len: limit on the tokens of a sequence.
        vocab_size: token ids are in [0, vocab_size).
    """
    num_seqs = min(max_num_seqs, num_tokens)
    lengths = np.ones(num_seqs, np.int64)
    num_left = num_tokens - num_seqs
    for index in range(num_seqs):
        more = min(num_left, max_model_len - 1)
        lengths[index] += more
        num_left -= more
    drafts = _drafts(lengths, num_sampled - num_seqs)
    # Penalties read all tokens of a sequence, and those of all are as wide as the longest one's.
    computed = np.zeros_like(lengths)
    computed[0] = max_model_len - lengths[0]
    params = largest_params(vocab_size)
    rows = np.array(
        [
            held.add(
                SequenceState(
                    sequence_id=index,
                    sequence_index=0,
                    token_ids=[0] * int(computed[index] + lengths[index] - drafts[index]),
                    num_prompt_tokens=max_model_len if index == 0 else 1,
                    num_computed_tokens=int(computed[index]),
                    block_ids=(),
                    sampling_params=params if index == 0 else replace(params, prompt_logprobs=None),
                )
            )
            for index in range(num_seqs)
        ]
    )
    batch = gather_batch(
        held,
        tuple(range(num_seqs)),
        rows,
        lengths - drafts,
        failed_ids=(),
        mark=-1,
        num_drafts=drafts,
        num_drafted=tuple(drafts.tolist()),
    )
    return replace(batch, slot_mapping=np.full_like(batch.slot_mapping, -1))


def _drafts(lengths: IntArray, num_drafts: int) -> IntArray:
    """Return how many of the tokens of each sequence are drafts, of so many or fewer in all."""
    most = lengths - 1
    before = np.cumsum(most) - most
    drafts: IntArray = np.clip(num_drafts - before, 0, most)
    return drafts


def largest_params(vocab_size: int) -> SamplingParams:
    """Return parameters that ask for all that takes memory, of token ids in [0, vocab_size)."""
    return SamplingParams(
        seed=0,
        presence_penalty=1.0,
        frequency_penalty=1.0,
        repetition_penalty=1.1,
        logit_bias=dict.fromkeys(range(min(MAX_LOGIT_BIAS_TOKENS, vocab_size)), 1.0),
        allowed_token_ids=(0,),
        max_tokens=MAX_TOKENS,
        min_tokens=MAX_TOKENS,
        logprobs=MAX_LOGPROBS,
        prompt_logprobs=MAX_LOGPROBS,
        stop_token_ids=tuple(range(1, min(MAX_STOP_TOKEN_IDS + 1, vocab_size))),
    )
