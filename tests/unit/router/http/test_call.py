"""JSON that is sent is one line to every client."""

import json
import math
import sys

import pytest

from router.http.call import to_json


def test_no_character_splits_the_json_of_an_event() -> None:
    """By any of the characters at which httpx and others split lines."""
    every = "".join(map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1))))
    splitting = [each for each in every if len(f"a{each}a".splitlines()) > 1]
    assert {"\n", "\u0085", "\u2028", "\u2029"} < set(splitting)
    content = {"a": "".join(splitting), "".join(splitting): [every]}
    sent = to_json(content).decode()
    assert len(sent.splitlines()) == 1
    assert json.loads(sent) == content


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_no_number_that_json_has_no_word_for_is_sent(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"a": [number]})
