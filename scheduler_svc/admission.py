"""Whether a request can ever run here, and how long its sequences may become."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from quire.errors import InvalidRequestError
from quire.sampling_params import SamplingParams
from scheduler_svc.block_manager import BlockSpaceManager


@dataclass(frozen=True, slots=True)
class Request:
    """What the scheduler is asked to run.

    Attributes:
        prompt_token_ids: of all its sequences.
        sampling_params: of all its sequences.
        outputs: tokens so far of the sequences that go on, by index; None for a new request.
    """

    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    outputs: Mapping[int, Iterable[int]] | None

    def sequences(self) -> Iterator[tuple[int, Iterable[int]]]:
        """Yield index and output so far of every sequence that the request begins with."""
        if self.outputs is not None:
            yield from sorted(self.outputs.items())
        elif self.sampling_params.use_beam_search:
            yield 0, ()  # forks as the search goes on
        else:
            yield from ((index, ()) for index in range(self.sampling_params.width))


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
