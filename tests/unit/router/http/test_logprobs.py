"""Log-probabilities of tokens that read alike, and where tokens begin in a text."""

import math

import pytest

from quire.contract.outputs import TokenLogprobs
from router.http.call import to_json
from router.http.logprobs import LOWEST, chat_logprob, completion_logprobs

ALIKE = TokenLogprobs((7, 5, 6, 7, 8), (-3.0, -0.5, -1.0, -3.0, -4.0), 3, ("?", "?", "a", "?", "a"))


@pytest.mark.parametrize(
    ("num_top", "expected"),
    [
        (0, {"?": -3.0}),
        (1, {"token_id:5": -0.5, "?": -3.0}),
        (3, {"token_id:5": -0.5, "a": -1.0, "?": -3.0}),
        (4, {"token_id:5": -0.5, "a": -1.0, "?": -3.0, "token_id:8": -4.0}),
    ],
)
def test_no_token_is_lost_to_one_that_reads_alike(num_top: int, expected: dict[str, float]) -> None:
    shown = completion_logprobs(["?"], [ALIKE], [0], num_top)
    [top] = shown["top_logprobs"]
    assert top == expected
    assert list(top) == list(expected)
    assert shown["token_logprobs"] == [top[shown["tokens"][0]]] == [-3.0]


@pytest.mark.parametrize("logprob", [-math.inf, math.nan])
def test_what_json_cannot_hold_is_the_lowest(logprob: float) -> None:
    shown = completion_logprobs(
        ["?"], [TokenLogprobs((7, 7), (logprob,) * 2, 1, ("?",) * 2)], [0], 1
    )
    assert shown["token_logprobs"] == [LOWEST]
    assert to_json(shown)


def test_bytes_are_those_of_each_token() -> None:
    shown = chat_logprob(ALIKE, 2, lambda token_id: bytes([token_id]))
    assert shown["bytes"] == [7]
    assert [each["bytes"] for each in shown["top_logprobs"]] == [[5], [6]]
