"""Vectors of the offline API: what goes into one call, and what happens where it is refused."""

from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from launch import llm_vectors
from quire.contract.embeddings import Embeddings
from quire.contract.errors import InvalidRequestError, OverloadedError
from quire.sdk.calls import embed_message
from quire.sdk.prompts import parse_prompts


class RecordingClient:
    """Gives each prompt its length as a vector, once it has raised what it has to."""

    def __init__(self, *errors: Exception) -> None:
        self.calls: list[Sequence[Any]] = []
        self._errors = list(errors)

    def embed(self, prompts: Sequence[Any], **options: Any) -> Embeddings:
        message = embed_message(prompts, options)
        assert message.ByteSize() < 2**22, "what a router reads"
        if self._errors:
            raise self._errors.pop(0)
        self.calls.append(prompts)
        vectors = tuple(array("f", [len(each)]) for each in prompts)
        lengths = tuple(map(len, prompts))
        return Embeddings(vectors, lengths, "m", "r", "", tuple((each,) for each in lengths))


def embed(client: RecordingClient, prompts: Sequence[Any], **options: Any) -> list[float]:
    done: list[int] = []
    parsed = parse_prompts(prompts)
    found = llm_vectors.embed(client, parsed, options, done.append)  # type: ignore[arg-type]
    assert done == [0] * len(found)
    assert [each.request_id for each in found] == list(map(str, range(len(found))))
    return [each.outputs.embedding[0] for each in found]


@pytest.mark.parametrize(
    ("prompts", "sizes"),
    [
        (["x"] * 300, [128, 128, 44]),
        (["x" * 2**20] * 5, [2, 2, 1]),
        (["\u4e2d" * 2**19] * 3, [1, 1, 1]),
        ([[2**31] * 2**18] * 3, [1, 1, 1]),
        (["x", "x" * (2**21 + 1), "x"], [1, 1, 1]),
        ([], []),
    ],
    ids=["many", "long", "wide", "token ids", "too long for others", "none"],
)
def test_a_call_is_cut_by_number_and_bytes(prompts: list[Any], sizes: list[int]) -> None:
    client = RecordingClient()
    assert embed(client, prompts) == list(map(len, prompts))
    assert list(map(len, client.calls)) == sizes


def test_salts_are_not_mixed() -> None:
    client = RecordingClient()
    salted = [{"prompt": "x", "cache_salt": salt} for salt in "aab"]
    assert embed(client, salted) == [1.0] * 3
    assert list(map(len, client.calls)) == [2, 1]


def test_a_full_cluster_is_asked_again() -> None:
    client = RecordingClient(OverloadedError("full", 1), OverloadedError("full", 1))
    assert embed(client, ["x", "xx"]) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens: must be in .* or -1, got -2"),
        (
            {"truncate_prompt_tokens": 2**31},
            "truncate_prompt_tokens: must be in .*, got 2147483648",
        ),
        ({"priority": 2**31}, "priority: must be in .*, got 2147483648"),
    ],
)
def test_what_no_message_holds_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        embed(RecordingClient(), ["x"], **options)
    assert embed(RecordingClient(), ["x"], truncate_prompt_tokens=-1) == [1.0]
