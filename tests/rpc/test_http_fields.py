"""Fields mean the same in every API, and what is wrong with one is told with what was got."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.rpc.http_setup import TEXT_TEMPLATE, HttpSetup, bodies, http_router
from tests.rpc.router_setup import BACKEND, PROMPT, PROMPT_IDS

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODIES = bodies(PROMPT, 3)
OF_TEXTS: dict[str, dict[str, Any]] = {**BODIES, "/v1/embeddings": {"input": PROMPT}}
TOO_LONG = bodies("long " * 300, 4)
OTHER = "another text to compare"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpSetup]:
    directory = tmp_path_factory.mktemp("model")
    async with http_router(directory, chat_template=TEXT_TEMPLATE) as made:
        yield made


async def refusal(setup: HttpSetup, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The error of a request that is answered with a 400."""
    response = await setup.post(path, body)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
async def test_a_prompt_that_is_too_long_has_a_code_of_its_own(
    setup: HttpSetup, path: str, is_stream: bool
) -> None:
    error = await refusal(setup, path, {**TOO_LONG[path], "stream": is_stream})
    assert error["code"] == "context_length_exceeded"
    assert "this model's maximum context length is 256 tokens" in error["message"]


async def test_a_prompt_that_is_too_long_is_so_to_agents_and_for_a_vector(
    setup: HttpSetup,
) -> None:
    """Agents look for words; Anthropic's errors have no code."""
    error = await refusal(setup, "/v1/messages", {**TOO_LONG["/v1/messages"], "stream": True})
    assert error["message"].startswith("prompt is too long: ")
    error = await refusal(setup, "/v1/embeddings", {"input": TOO_LONG["/v1/responses"]["input"]})
    assert error["code"] == "context_length_exceeded"
    assert "this model's maximum context length is 256 tokens" in error["message"]


@pytest.mark.parametrize("path", OF_TEXTS)
async def test_a_prompt_is_cut_at_the_side_that_is_named(setup: HttpSetup, path: str) -> None:
    last, first = PROMPT_IDS[-3:], PROMPT_IDS[:3]
    for side, kept in ((None, last), ("left", last), ("right", first)):
        body = {**OF_TEXTS[path], "truncate_prompt_tokens": 3, "truncation_side": side}
        response = await setup.post(path, body)
        assert response.status_code == 200, response.text
        assert setup.fake.submitted[-1].prompt == kept, side


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/score", {"text_1": PROMPT, "text_2": OTHER}),
        ("/rerank", {"query": PROMPT, "documents": [OTHER]}),
    ],
)
async def test_texts_that_are_compared_are_cut_there_too(
    setup: HttpSetup, path: str, body: dict[str, Any]
) -> None:
    both = [tuple(BACKEND.encode(text).ids) for text in (PROMPT, OTHER)]
    for side, kept in (
        ("left", {ids[-2:] for ids in both}),
        ("right", {ids[:2] for ids in both}),
    ):
        cut = {"truncate_prompt_tokens": 2, "truncation_side": side}
        assert (await setup.post(path, {**body, **cut})).status_code == 200
        assert {each.prompt for each in setup.fake.submitted[-2:]} == kept, side


@pytest.mark.parametrize("path", OF_TEXTS)
async def test_a_prompt_has_no_other_sides(setup: HttpSetup, path: str) -> None:
    for side, told in (("middle", "left or right, got 'middle'"), (5, "a string, got a number")):
        body = {**OF_TEXTS[path], "truncate_prompt_tokens": 3, "truncation_side": side}
        error = await refusal(setup, path, body)
        assert error["message"] == f"truncation_side: must be {told}"
        assert error.get("param", "truncation_side") == "truncation_side"


@pytest.mark.parametrize("name", ["abc", "-1", "1.5", "", "\u0663", "9" * 16, "x" * 40])
@pytest.mark.parametrize("path", BODIES)
async def test_a_bias_for_no_token_is_told_with_its_name(
    setup: HttpSetup, path: str, name: str
) -> None:
    error = await refusal(setup, path, {**BODIES[path], "logit_bias": {name: 1}})
    assert error["message"] == f"logit_bias: must have token ids as names, got {name[:32]!r}"
    assert error.get("param", "logit_bias") == "logit_bias"


async def test_who_wants_no_reasoning_in_a_response_is_told_that_it_is_an_item(
    setup: HttpSetup,
) -> None:
    path = "/v1/responses"
    error = await refusal(setup, path, {**BODIES[path], "include_reasoning": False})
    assert error["param"] == "include_reasoning"
    assert error["message"].startswith("include_reasoning: must be true: ")
    same = await setup.post(path, {**BODIES[path], "include_reasoning": True})
    assert same.status_code == 200, same.text
