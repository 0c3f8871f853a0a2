"""From requests to groups: whether one can ever run here, and how long its sequences may become."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from quire.contract.errors import InvalidRequestError
from quire.contract.sampling_params import SamplingParams
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.sequences.sequence import Sequence, SequenceGroup


@dataclass(frozen=True, slots=True)
class Request:
    """What the scheduler is asked to run.

    Attributes:
        prompt_token_ids: of all its sequences.
        sampling_params: of all its sequences.
        outputs: tokens so far of the sequences that go on, by index; None for a new request.
        priority: smaller goes first.
        cache_salt: share cached prefixes with requests of the same salt only.
        traceparent: handed on to the workers.
    """

    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    outputs: Mapping[int, Iterable[int]] | None = None
    priority: int = 0
    cache_salt: bytes = b""
    traceparent: str = ""

    def sequences(self) -> Iterator[tuple[int, Iterable[int]]]:
        """Yield index and output so far of every sequence that the request begins with."""
        if self.outputs is not None:
            yield from sorted(self.outputs.items())
        elif self.sampling_params.use_beam_search:
            yield 0, ()  # forks as the search goes on
        else:
            yield from ((index, ()) for index in range(self.sampling_params.width))


class Admission:
    """Makes a group of each request that can run here.

    Args:
        block_manager: of the workers' cache.
        max_num_seqs: sequences that run at once.
        max_model_len: tokens, prompt and output, of one sequence.
        eos_token_ids: end-of-text ids of the model.
        priority_ageing_s: how much later a group counts as come for each level of priority.
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
        """Return an id that no sequence has had."""
        return next(self._sequence_ids)

    def make_group(self, request: Request, now: float) -> SequenceGroup:
        """Return the group of a request.

        Args:
            request: to be run.
            now: seconds, never less than at an earlier call.

        Raises:
            InvalidRequestError: it can never run here; names field, limit and value.
        """
        check_request(request, self._blocks, self._max_num_seqs, self._max_model_len)
        params, group_id = request.sampling_params, next(self._group_ids)
        stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_token_ids |= self._eos_token_ids
        return SequenceGroup(
            group_id,
            (now + request.priority * self._priority_ageing_s, group_id),
            [
                Sequence(self.next_sequence_id(), index, request.prompt_token_ids, output)
                for index, output in request.sequences()
            ],
            params,
            stop_token_ids,
            max_num_tokens(request, self._blocks, self._max_model_len),
            request.cache_salt,
            request.traceparent,
        )


def check_request(
    request: Request, blocks: BlockSpaceManager, max_num_seqs: int, max_model_len: int
) -> None:
    """Check a request against the limits of this cell.

    Raises:
        InvalidRequestError: it can never run here; names field, limit and value.
    """
    params, num_prompt_tokens = request.sampling_params, len(request.prompt_token_ids)
    if not num_prompt_tokens:
        raise InvalidRequestError("prompt", "must hold at least 1 token, got 0")
    if num_prompt_tokens >= max_model_len:
        raise InvalidRequestError(
            "prompt",
            f"must hold fewer tokens than max_model_len ({max_model_len}), got {num_prompt_tokens}",
        )
    width_field = "n" if params.best_of is None else "best_of"
    if params.width > max_num_seqs:
        raise InvalidRequestError(
            width_field, f"must be at most max_num_seqs ({max_num_seqs}), got {params.width}"
        )
    num_blocks = -(-num_prompt_tokens // blocks.block_size)
    if num_blocks > blocks.num_blocks:
        raise InvalidRequestError(
            "prompt",
            f"must fit into the cache of {blocks.num_slots} tokens, got {num_prompt_tokens}",
        )
    longest = max_num_tokens(request, blocks, max_model_len)
    if longest <= num_prompt_tokens:
        raise InvalidRequestError(
            width_field,
            f"{params.width} sequences of {num_prompt_tokens} prompt tokens each do not fit into "
            f"the cache of {blocks.num_slots} tokens together",
        )
    if params.use_beam_search and request.outputs is not None:
        raise InvalidRequestError("output_token_ids", "a beam search cannot go on from outputs")
    for index, output in request.sequences():
        num_tokens = num_prompt_tokens + len(list(output))
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


def max_num_tokens(request: Request, blocks: BlockSpaceManager, max_model_len: int) -> int:
    """Return the length, prompt included, at which the sequences of a request end.

    All of a group must fit into the cache at once, or it could never run. Only full blocks of the
    prompt are sure to be shared. A sequence one token longer than its blocks has all others in
    them, and can go no further.
    """
    params, block_size = request.sampling_params, blocks.block_size
    num_shared = (len(request.prompt_token_ids) - 1) // block_size
    num_own = (blocks.num_blocks - num_shared) // params.width
    longest = (num_shared + num_own) * block_size + 1 if num_own > 0 else 0
    if params.max_tokens is not None:
        longest = min(longest, len(request.prompt_token_ids) + params.max_tokens)
    return min(longest, max_model_len)
