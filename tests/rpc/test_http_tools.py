"""Tool calls and reasoning of /v1/chat/completions, asked for by OpenAI's own client.

The fake model says its prompt again, so that a message of a test is what the assistant says.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError

from tests.rpc.http_setup import HttpSetup, http_router

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/chat/completions"
TEMPLATE = "{# <tool_call> </think> #}{{ messages[0].content }}"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
STRICT = [{"type": "function", "function": {"name": "f", "strict": True}}]
CALL = '<tool_call>{"name": "f", "arguments": {"x": [1]}}</tool_call>'
TEXT = f"<think>Hm</think>Yes{CALL}"
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": f"{TEXT}END"}],
    "max_tokens": 120,
    "stop": ["END"],
    "tools": TOOLS,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory) -> AsyncIterator[HttpSetup]:
    directory = tmp_path_factory.mktemp("model")
    async with http_router(directory, chat_template=TEMPLATE) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(setup) -> AsyncIterator[AsyncOpenAI]:
    base_url = f"http://{setup.router.http_address}/v1"
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as made:
        yield made


async def test_a_call_is_no_content(client) -> None:
    answer = await client.chat.completions.create(model="fake", **BODY)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Yes"
    assert choice.message.model_extra["reasoning_content"] == "Hm"
    [call] = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "f")
    assert json.loads(call.function.arguments) == {"x": [1]}


@pytest.mark.parametrize(("parallel", "number"), [(False, 1), (True, 2), (None, 2)])
async def test_one_call_unless_several_may_be_made(client, parallel, number) -> None:
    messages = [{"role": "user", "content": f"{CALL}\n{CALL}END"}]
    body = {**BODY, "messages": messages}
    if parallel is not None:
        body["parallel_tool_calls"] = parallel
    whole = (await client.chat.completions.create(model="fake", **body)).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert len(whole.message.tool_calls) == number
    async with client.chat.completions.stream(model="fake", **body) as stream:
        [choice] = (await stream.get_final_completion()).choices
    calls = [(each.function.name, each.function.arguments) for each in choice.message.tool_calls]
    assert calls == [("f", '{"x": [1]}')] * number


@pytest.mark.parametrize(
    ("body", "field"),
    [({"tool_choice": "required"}, "tool_choice"), ({"tools": STRICT}, "tools")],
)
async def test_a_grammar_is_refused_by_the_field_that_asked_for_it(client, body, field) -> None:
    """No cell here obeys any."""
    with pytest.raises(BadRequestError, match="must be absent: no cell") as caught:
        await client.chat.completions.create(model="fake", **{**BODY, **body})
    assert caught.value.param == field


async def test_a_stream_brings_the_same(client) -> None:
    extra = {"extra_headers": {"X-Request-ID": "same"}}
    whole = (await client.chat.completions.create(model="fake", **BODY, **extra)).choices[0]
    async with client.chat.completions.stream(model="fake", **BODY, **extra) as stream:
        chunks = [event.chunk async for event in stream if event.type == "chunk"]
        [choice] = (await stream.get_final_completion()).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Yes"
    [call], [same] = choice.message.tool_calls, whole.message.tool_calls
    assert (call.id, call.function.arguments) == (same.id, same.function.arguments)
    deltas = [chunk.choices[0].delta.model_extra for chunk in chunks]
    assert "".join(each.get("reasoning_content", "") for each in deltas) == "Hm"


async def test_a_stream_that_broke_goes_on_within_a_call(setup) -> None:
    body = {**BODY, "seed": 4}
    whole = await setup.events(PATH, body)
    contents = [(event.id, event.data["choices"]) for event in whole[:-1]]
    assert any("tool_calls" in choices[0]["delta"] for _, choices in contents)
    first = whole[0].data
    for num in range(1, len(contents), 3):
        resume = {"id": first["id"], "created": first["created"], "seed": 4, "starting_after": num}
        rest = await setup.events(PATH, {**body, "resume": resume})
        assert [(each.id, each.data["choices"]) for each in rest[:-1]] == contents[num:]


@pytest.mark.parametrize("ends", [{}, {"ignore_eos": True, "stop_token_ids": [1]}])
async def test_a_special_token_that_ends_a_text_is_no_content(client, ends) -> None:
    message = {"role": "user", "content": "Yes</s>"}
    body = {"messages": [message], "tools": TOOLS, "max_tokens": 9}
    for include, content in ((False, "Yes"), (True, "Yes</s>" if ends else "Yes")):
        extra = {**ends, "include_stop_str_in_output": include}
        answer = await client.chat.completions.create(model="fake", **body, extra_body=extra)
        [choice] = answer.choices
        assert (choice.message.content, choice.finish_reason) == (content, "stop")


async def test_without_tools_a_call_is_content(client) -> None:
    for body in ({**BODY, "tools": []}, {**BODY, "tool_choice": "none"}):
        answer = await client.chat.completions.create(model="fake", **body)
        assert answer.choices[0].message.content == f"Yes{CALL}"
        assert answer.choices[0].finish_reason == "stop"
