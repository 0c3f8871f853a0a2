"""From requests to groups: checks against the limits of the cell, the seed, the largest length."""

import random
from collections.abc import Collection, Iterator
from collections.abc import Sequence as AbstractSequence
from itertools import count

from quire.contract.errors import InvalidRequestError, OverloadedError, TooLargeError
from quire.contract.outputs import ModelInfo
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.policy.group_queue import queue_order
from scheduler_svc.policy.tenants import WaitingGroups
from scheduler_svc.sequences.sequence import Sequence, SequenceGroup

# When a router may send a request again that found the queue full.
RETRY_AFTER_MS = 1000


class Admission:
    """Makes a group of each request that can ever run here.

    Args:
        block_manager: of the workers' cache.
        max_num_seqs: sequences that run at once.
        max_model_len: tokens, prompt and output, of one sequence.
        eos_token_ids: end-of-text ids of the model.
        priority_ageing_s: how much later each level of priority counts as come, in seconds.
    """

    def __init__(
        self,
        block_manager: BlockSpaceManager,
        *,
        max_num_seqs: int,
        max_model_len: int,
        eos_token_ids: Collection[int],
        priority_ageing_s: float,
    ) -> None:
        self._blocks = block_manager
        self._max_num_seqs = max_num_seqs
        self._max_model_len = max_model_len
        self._eos_token_ids = frozenset(eos_token_ids)
        self._priority_ageing_s = priority_ageing_s
        self._group_ids = count(1)
        self._sequence_ids = count(1)

    def next_sequence_id(self) -> int:
        """Return an id that no sequence has had before."""
        return next(self._sequence_ids)

    def make_group(self, submission: Submission, now: float) -> SequenceGroup:
        """Return the group of a submission.

        Args:
            submission: its sampling parameters have a seed.
            now: seconds, never less than at an earlier call.

        Raises:
            InvalidRequestError: it can never run here; names field, limit and value.
        """
        check_submission(submission, self._blocks, self._max_num_seqs, self._max_model_len)
        params, group_id = submission.sampling_params, next(self._group_ids)
        stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_token_ids |= self._eos_token_ids
        return SequenceGroup(
            group_id,
            queue_order(now, submission.priority, self._priority_ageing_s, group_id),
            [
                Sequence(
                    *(self.next_sequence_id(), index, submission.prompt_token_ids, output),
                    samples=submission.pooling_params is None,
                )
                for index, output in first_sequences(submission)
            ],
            params,
            stop_token_ids,
            max_num_tokens(submission, self._max_model_len),
            submission.cache_salt.encode(),
            submission.traceparent,
            submission.tenant,
            submission.tenant_weight,
            submission.was_queued,
            submission.suspect_until,
            submission.num_lost_alone,
            submission.pooling_params,
        )


def first_sequences(submission: Submission) -> Iterator[tuple[int, AbstractSequence[int]]]:
    """Yield index and output so far of every sequence that a request begins with."""
    if submission.outputs is not None:
        yield from sorted(submission.outputs.items())
    elif submission.sampling_params.use_beam_search:
        yield 0, ()  # forks as the search goes on
    else:
        yield from ((index, ()) for index in range(submission.sampling_params.width))


def draw_seed(params: SamplingParams, source: random.Random) -> int:
    """Return the seed of a request: its own, or a random one.

    A drawn one has 53 bits, so that clients which read JSON into doubles can send it back.
    """
    return source.getrandbits(53) if params.seed is None else params.seed


def check_queue(
    waiting: WaitingGroups, num_tokens: int, max_waiting: int, max_waiting_tokens: int
) -> None:
    """Check that one more request may wait.

    Args:
        waiting: the groups that wait.
        num_tokens: of the request's prompt; one alone is never too many.
        max_waiting: most groups.
        max_waiting_tokens: most tokens of their prompts.

    Raises:
        OverloadedError: the queue is full.
    """
    if len(waiting) >= max_waiting:
        raise OverloadedError(
            f"the waiting queue is full: max_waiting is {max_waiting}", RETRY_AFTER_MS
        )
    if waiting and waiting.num_prompt_tokens + num_tokens > max_waiting_tokens:
        raise OverloadedError(
            f"the waiting queue is full: max_waiting_tokens is {max_waiting_tokens}, "
            f"{waiting.num_prompt_tokens} wait, got {num_tokens}",
            RETRY_AFTER_MS,
        )


def check_submission(
    submission: Submission, blocks: BlockSpaceManager, max_num_seqs: int, max_model_len: int
) -> None:
    """Check a request against the limits of this cell.

    Raises:
        InvalidRequestError: it can never run; names field, limit and value.
        TooLargeError: so for this cell.
    """
    params, num_prompt_tokens = submission.sampling_params, len(submission.prompt_token_ids)
    if not num_prompt_tokens:
        raise InvalidRequestError("prompt", "must hold at least 1 token, got 0")
    if submission.pooling_params is not None:
        limit = min(max_model_len, blocks.num_slots)
        if num_prompt_tokens > limit:
            raise TooLargeError(
                "prompt", f"must hold at most {limit} tokens, got {num_prompt_tokens}"
            )
        return
    if num_prompt_tokens >= max_model_len:
        raise TooLargeError(
            "prompt",
            f"must hold fewer tokens than max_model_len ({max_model_len}), got {num_prompt_tokens}",
        )
    width_field = "n" if params.best_of is None else "best_of"
    if params.width > max_num_seqs:
        raise TooLargeError(
            width_field, f"must be at most max_num_seqs ({max_num_seqs}), got {params.width}"
        )
    _check_fits(submission, width_field, blocks, max_model_len)
    if params.use_beam_search and submission.outputs is not None:
        raise InvalidRequestError("output_token_ids", "a beam search cannot go on from outputs")
    for index, output in first_sequences(submission):
        num_tokens = num_prompt_tokens + len(output)
        if index >= params.width:
            raise InvalidRequestError(
                "output_token_ids", f"sequence index must be below {params.width}, got {index}"
            )
        if num_tokens > max_model_len:
            raise InvalidRequestError(
                "output_token_ids",
                f"must hold at most max_model_len ({max_model_len}) tokens with the prompt, "
                f"got {num_tokens}",
            )


def _check_fits(
    submission: Submission, width_field: str, blocks: BlockSpaceManager, max_model_len: int
) -> None:
    """Check that all sequences of a request, at their longest, fit into the cache at once.

    Else the length of its answer would depend on the cache.

    Raises:
        TooLargeError: they do not.
    """
    params, num_prompt_tokens = submission.sampling_params, len(submission.prompt_token_ids)
    limit = longest_fitting(num_prompt_tokens, params.width, blocks.num_blocks, blocks.block_size)
    limit = min(limit, max_model_len) - num_prompt_tokens
    if limit <= 0 and params.width == 1:
        raise TooLargeError(
            "prompt",
            f"must fit into the cache of {blocks.num_slots} tokens, got {num_prompt_tokens}",
        )
    if limit <= 0:
        raise TooLargeError(
            width_field,
            f"must be so few that as many sequences of {num_prompt_tokens} prompt tokens fit into "
            f"the cache of {blocks.num_slots} tokens together, got {params.width}",
        )
    wanted = params.max_tokens or max_model_len - num_prompt_tokens
    if wanted > limit:
        default = "" if params.max_tokens else ", what max_model_len leaves"
        raise TooLargeError(
            "max_tokens",
            f"must be at most {limit} for {params.width} sequences of {num_prompt_tokens} prompt "
            f"tokens in a cache of {blocks.num_slots} tokens with a max_model_len of "
            f"{max_model_len}, got {wanted}{default}",
        )


def longest_fitting(
    num_prompt_tokens: int, num_sequences: int, num_blocks: int, block_size: int
) -> int:
    """Return how long the sequences of a prompt may become that fit into a cache at once.

    Only full blocks of the prompt are sure to be shared. A sequence one token longer than its
    blocks has all others in them.

    Args:
        num_prompt_tokens: of the prompt.
        num_sequences: that are made of it.
        num_blocks: of the cache.
        block_size: slots of a block.
    """
    num_shared = (num_prompt_tokens - 1) // block_size
    num_own = (num_blocks - num_shared) // num_sequences
    return (num_shared + num_own) * block_size + 1 if num_own > 0 else 0


def check_model(submission: Submission, model: ModelInfo) -> None:
    """Check that the model generates text, if a request asks for it, and has every token of it.

    Raises:
        InvalidRequestError: it does not; names the field and the largest token.
    """
    if submission.pooling_params is None:
        model.check_generates()
    params = submission.sampling_params
    fields = [("prompt", submission.prompt_token_ids)]
    fields += [("output_token_ids", output) for output in (submission.outputs or {}).values()]
    fields += [
        ("logit_bias", tuple(params.logit_bias)),
        ("allowed_token_ids", params.allowed_token_ids),
        ("stop_token_ids", params.stop_token_ids),
    ]
    fields += [("bad_words_token_ids", token_ids) for token_ids in params.bad_words_token_ids]
    for field, token_ids in fields:
        largest = max(token_ids, default=0)
        if largest >= model.vocab_size:
            raise InvalidRequestError(
                field, f"token ids must be in [0, {model.vocab_size - 1}], got {largest}"
            )


def max_num_tokens(submission: Submission, max_model_len: int) -> int:
    """Return the length, prompt included, at which the sequences of a request end.

    One that gets a vector ends before: it has no token beyond its prompt.
    """
    if submission.pooling_params is not None:
        return len(submission.prompt_token_ids) + 1
    max_tokens = submission.sampling_params.max_tokens
    if max_tokens is None:
        return max_model_len
    return len(submission.prompt_token_ids) + max_tokens
