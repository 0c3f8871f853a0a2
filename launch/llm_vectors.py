"""Vectors of prompts, and how alike they are, as the offline API returns them."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from quire.contract.embeddings import (
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Embeddings,
    ScoringOutput,
    ScoringRequestOutput,
    cosine,
)
from quire.contract.errors import InvalidRequestError, OverloadedError
from quire.sdk.calls import EmbedOptions
from quire.sdk.client import Client
from quire.sdk.prompts import ParsedPrompt

Content = str | Sequence[int]

# Of one call, so that its answer fits a message, and progress shows.
MAX_PROMPTS_OF_A_CALL = 128
# Likewise, so that it fits the message that a router reads; a larger prompt is sent alone.
MAX_BYTES_OF_A_CALL = 2 * 2**20
# Of a token id in a message.
_BYTES_PER_ID = 5


def embed(
    client: Client,
    prompts: Sequence[ParsedPrompt],
    options: EmbedOptions,
    advance: Callable[[int], None],
) -> list[EmbeddingRequestOutput]:
    """Return the vector of each prompt, with patience for a cluster that is full.

    Args:
        client: of the cluster.
        prompts: of which those with the same salt are sent together.
        options: of the calls.
        advance: called with 0 for each prompt that is done.

    Raises:
        QuireError: as `Client.embed`.
    """
    outputs: list[EmbeddingRequestOutput] = []
    for salt, group in groupby(prompts, key=lambda each: each.cache_salt):
        for contents in _calls([each.content for each in group]):
            own: EmbedOptions = {**options, "cache_salt": salt, "include_prompt_token_ids": True}
            try:
                found = _embed(client, contents, own)
            except InvalidRequestError as error:
                raise _renumbered(error, len(outputs)) from error
            for vector, token_ids in zip(found.vectors, found.prompt_token_ids, strict=True):
                request_id = str(len(outputs))
                outputs.append(
                    EmbeddingRequestOutput(request_id, EmbeddingOutput(vector.tolist()), token_ids)
                )
                advance(0)
    return outputs


def _calls(contents: Sequence[Content]) -> Iterator[Sequence[Content]]:
    """Yield what goes into one call each, in the order of the prompts."""
    start = num_bytes = 0
    for end, content in enumerate(contents):
        size = _BYTES_PER_ID * len(content)
        if isinstance(content, str):
            size = len(content.encode())
        is_full = num_bytes + size > MAX_BYTES_OF_A_CALL or end - start == MAX_PROMPTS_OF_A_CALL
        if is_full and end > start:
            yield contents[start:end]
            start, num_bytes = end, 0
        num_bytes += size
    yield contents[start:]


def _embed(client: Client, contents: Sequence[Content], options: EmbedOptions) -> Embeddings:
    while True:
        try:
            return client.embed(contents, **options)
        except OverloadedError as error:
            time.sleep(error.retry_after_ms / 1e3)


def _renumbered(error: InvalidRequestError, num_before: int) -> InvalidRequestError:
    """Return an error that names a prompt by its place among all."""
    place = error.field.removeprefix("inputs[").removesuffix("]")
    if not place.isdigit():
        return error
    return type(error)(f"prompts[{num_before + int(place)}]", error.description)


def check_pairs(first: Sequence[object], second: Sequence[object]) -> None:
    """Check that texts of two sides make pairs.

    Raises:
        InvalidRequestError: they do not.
    """
    if not second:
        raise InvalidRequestError("data_2", "must have at least 1 item, got 0")
    if len(first) not in (1, len(second)):
        raise InvalidRequestError(
            "data_1", f"must have 1 item, or as many as data_2 ({len(second)}), got {len(first)}"
        )


def scores(
    first: Sequence[EmbeddingRequestOutput], second: Sequence[EmbeddingRequestOutput]
) -> list[ScoringRequestOutput]:
    """Return how alike pairs are.

    Args:
        first: vectors of length 1; one for all of the second side, or one for each.
        second: likewise.
    """
    found = []
    for place, each in enumerate(second):
        other = first[place if len(first) > 1 else 0]
        score = cosine(other.outputs.embedding, each.outputs.embedding)
        token_ids = other.prompt_token_ids + each.prompt_token_ids
        found.append(ScoringRequestOutput(str(place), ScoringOutput(score), token_ids))
    return found
