"""Vectors of prompts: what asks for them, what comes back, and how alike two of them are."""

import math
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from quire.contract.callers import MAX_PRIORITY
from quire.contract.errors import InvalidRequestError
from quire.contract.pooling_params import NORMALIZED, PoolingParams
from quire.contract.sampling_params import MAX_TOKENS

# OpenAI's.
MAX_INPUTS = 2048
# vLLM's: use as many tokens of a prompt as the model takes.
MODELS_LENGTH = -1


@dataclass(frozen=True, slots=True)
class EmbedInput:
    """Prompts whose vectors are asked for.

    Attributes:
        prompts: texts or token ids, 1 to 2048.
        pooling_params: how vectors are made.
        request_id: "" has the router make one.
        model: "" for the only one that is served.
        truncate_prompt_tokens: use only so many tokens of each prompt, its last ones; -1 for as
            many as the model takes; None uses all.
        add_special_tokens: whether texts get the tokens that the model expects around a prompt.
        priority: smaller goes first, in [-100, 100].
        cache_salt: cached prefixes are shared within a salt only.
        include_prompt_token_ids: return the token ids of each prompt.
        truncate_right: of a prompt that is truncated, use the first tokens.

    Raises:
        InvalidRequestError: there are no prompts, or too many, or a value is out of bounds.
    """

    prompts: Sequence[str | Sequence[int]]
    pooling_params: PoolingParams = NORMALIZED
    request_id: str = ""
    model: str = ""
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool = True
    priority: int = 0
    cache_salt: str = ""
    include_prompt_token_ids: bool = False
    truncate_right: bool = False

    def __post_init__(self) -> None:
        check_num_inputs("inputs", len(self.prompts))
        num_kept = self.truncate_prompt_tokens
        if num_kept is not None and num_kept != MODELS_LENGTH and not 1 <= num_kept <= MAX_TOKENS:
            raise InvalidRequestError(
                "truncate_prompt_tokens", f"must be in [1, {MAX_TOKENS}] or -1, got {num_kept}"
            )
        if abs(self.priority) > MAX_PRIORITY:
            raise InvalidRequestError(
                "priority", f"must be in [-{MAX_PRIORITY}, {MAX_PRIORITY}], got {self.priority}"
            )


@dataclass(frozen=True, slots=True)
class Embeddings:
    """A vector for each prompt.

    Attributes:
        vectors: float32, in the order of the prompts.
        num_prompt_tokens: of each prompt, after tokenization.
        model: that computed them.
        request_id: the client's, or the one the router made.
        numerics_id: of every cell that computed one of them: it gives the same vectors again, to
            the bit; "" where they differ, or nothing is promised.
        prompt_token_ids: of each prompt, if they were asked for.
    """

    vectors: tuple["array[float]", ...]
    num_prompt_tokens: tuple[int, ...]
    model: str
    request_id: str
    numerics_id: str = ""
    prompt_token_ids: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A vector, as the offline API returns it.

    Attributes:
        embedding: its elements.
    """

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many elements there are."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """The vector of a prompt, as the offline API returns it.

    Attributes:
        request_id: of the request.
        outputs: the vector.
        prompt_token_ids: after tokenization.
        finished: True.
    """

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: tuple[int, ...]
    finished: bool = True


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """How alike two texts are, as the offline API returns it.

    Attributes:
        score: cosine of their vectors, in [-1, 1].
    """

    score: float


@dataclass(frozen=True, slots=True)
class ScoringRequestOutput:
    """How alike two texts are, and which these are.

    Attributes:
        request_id: of the request for the second one.
        outputs: the score.
        prompt_token_ids: of both texts, one after the other.
        finished: True.
    """

    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: tuple[int, ...]
    finished: bool = True


def check_num_inputs(field: str, number: int) -> None:
    """Check how many prompts a request has.

    Raises:
        InvalidRequestError: none, or too many.
    """
    if not 1 <= number <= MAX_INPUTS:
        raise InvalidRequestError(field, f"must have 1 to {MAX_INPUTS} items, got {number}")


def vector_of(data: bytes) -> "array[float]":
    """Return the vector of little-endian float32."""
    vector = array("f", data)
    if sys.byteorder == "big":
        vector.byteswap()
    return vector


def bytes_of(vector: "array[float]") -> bytes:
    """Return a vector as little-endian float32."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return vector.tobytes()


def cosine(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the cosine between two vectors of length 1, in [-1, 1].

    The products are exact, and their sum is rounded once: it does not depend on the machine.
    """
    return max(-1.0, min(1.0, math.fsum(map(mul, first, second))))
