"""A prompt that is shown: its tokens and the output's begin where `text_offset` says."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from tests.fakes.fake_scheduler import FakeScheduler
from tests.fakes.small_tokenizers import byte_fallback, byte_level
from tests.rpc.http_setup import http_router
from tests.rpc.stream_sums import completion_sum
from tests.unit.router.test_offsets import with_bounds

PATH = "/v1/completions"
PROMPT = "The list class has methods to sort"
NUM_TOKENS = 3
KINDS = {"byte level": byte_level, "byte fallback": byte_fallback}
SPECIAL = ("<s>", "</s>")
SHOWN: dict[str, dict[str, Any]] = {
    "as it is": {},
    "cut": {"truncate_prompt_tokens": 4},
    "cut at its end": {"truncate_prompt_tokens": 4, "truncation_side": "right"},
    "without what is added": {"add_special_tokens": False},
}


def words_again(prompt: Sequence[int], seed: int, position: int) -> int:
    """The prompt once more, without what stands around it."""
    inner = [token_id for token_id in prompt if token_id > 2]
    return inner[position % len(inner)]


def pieces_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    """Of each token its text, and that which stands from its offset to the next one."""
    text, logprobs = choice["text"], choice["logprobs"]
    begins = logprobs["text_offset"]
    assert begins == sorted(begins)
    ends = [*begins[1:], len(text)]
    places = zip(logprobs["tokens"], begins, ends, strict=True)
    return [(token, text[begin:end]) for token, begin, end in places]


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["text", "ids", "ids with all that they say"])
async def test_each_token_begins_where_its_offset_says(
    tmp_path: Path, kind: str, shown: str, form: str
) -> None:
    make: Callable[[], Backend] = KINDS[kind]
    backend = with_bounds(make())
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": NUM_TOKENS, **SHOWN[shown]}
    if form != "text":
        body["prompt"] = backend.encode(PROMPT).ids
    has_special = form == "ids with all that they say"
    body["skip_special_tokens"] = not has_special
    asked = {**body, "echo": True, "logprobs": 1, "return_token_ids": True}
    async with http_router(tmp_path, FakeScheduler(words_again), backend=backend) as setup:
        [alone] = (await setup.post(PATH, body)).json()["choices"]
        response = await setup.post(PATH, asked)
        assert response.status_code == 200, response.text
        [choice] = response.json()["choices"]
        options = {"stream_options": {"include_usage": True}}
        [streamed] = completion_sum(await setup.events(PATH, {**asked, **options}))["choices"]
    assert streamed == choice
    text, logprobs = choice["text"], choice["logprobs"]
    num_prompt = len(choice["prompt_token_ids"])
    assert set(map(len, logprobs.values())) == {num_prompt + NUM_TOKENS}
    assert text.endswith(alone["text"])
    assert logprobs["text_offset"][num_prompt] == len(text) - len(alone["text"])
    assert logprobs["token_logprobs"].index(None) == 0
    assert None not in logprobs["token_logprobs"][1:]
    for token, piece in pieces_of(choice):
        expected = "" if token in SPECIAL and not has_special else token.strip()
        # At the beginning of a text some tokenizers leave a token's space out.
        assert piece.strip() == expected, (token, piece)
