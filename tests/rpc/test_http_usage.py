"""Usage tells how many tokens of a prompt the cache had, in every API, whole and streamed."""

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fake_scheduler import FakeScheduler
from tests.rpc.http_setup import TEXT_TEMPLATE, bodies, http_router
from tests.rpc.router_setup import PROMPT, PROMPT_IDS
from tests.rpc.stream_sums import chat_sum, completion_sum, message_sum, response_sum

NUM_CACHED, NUM_PROMPT, NUM_TOKENS = 5, len(PROMPT_IDS), 3
BODIES = bodies(PROMPT, NUM_TOKENS)
SUMS = {
    "/v1/completions": completion_sum,
    "/v1/chat/completions": chat_sum,
    "/v1/messages": message_sum,
    "/v1/responses": response_sum,
}
# Of those that have it only where it was asked for.
WITH_USAGE = {"stream_options": {"include_usage": True}}
OPTIONS = {"/v1/completions": WITH_USAGE, "/v1/chat/completions": WITH_USAGE}
OPENAI = {
    "prompt_tokens": NUM_PROMPT,
    "completion_tokens": NUM_TOKENS,
    "total_tokens": NUM_PROMPT + NUM_TOKENS,
    "prompt_tokens_details": {"cached_tokens": NUM_CACHED},
}
USAGES: dict[str, dict[str, Any]] = {
    "/v1/completions": OPENAI,
    "/v1/chat/completions": OPENAI,
    # Those that were cached are counted apart.
    "/v1/messages": {
        "input_tokens": NUM_PROMPT - NUM_CACHED,
        "output_tokens": NUM_TOKENS,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": NUM_CACHED,
    },
    "/v1/responses": {
        "input_tokens": NUM_PROMPT,
        "input_tokens_details": {"cached_tokens": NUM_CACHED, "cache_write_tokens": 0},
        "output_tokens": NUM_TOKENS,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": NUM_PROMPT + NUM_TOKENS,
    },
}


def caching_cell() -> FakeScheduler:
    """Has the first tokens of each prompt."""
    fake = FakeScheduler()
    fake.num_cached_tokens = NUM_CACHED
    return fake


@pytest.mark.parametrize("path", BODIES)
async def test_usage_tells_what_the_cache_had(tmp_path: Path, path: str) -> None:
    async with http_router(tmp_path, caching_cell(), chat_template=TEXT_TEMPLATE) as setup:
        whole = await setup.post(path, BODIES[path])
        events = await setup.events(path, {**BODIES[path], **OPTIONS.get(path, {})})
    assert whole.json()["usage"] == USAGES[path]
    assert SUMS[path](events)["usage"] == USAGES[path]


async def test_of_several_prompts_it_is_the_sum(tmp_path: Path) -> None:
    body = {"prompt": [PROMPT, PROMPT], "max_tokens": NUM_TOKENS}
    async with http_router(tmp_path, caching_cell()) as setup:
        whole = (await setup.post("/v1/completions", body)).json()["usage"]
        events = await setup.events("/v1/completions", {**body, **WITH_USAGE})
    assert whole["prompt_tokens_details"] == {"cached_tokens": 2 * NUM_CACHED}
    assert completion_sum(events)["usage"] == whole
