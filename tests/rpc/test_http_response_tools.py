"""Tool calls and reasoning of /v1/responses, asked for by OpenAI's own client.

The fake model repeats its prompt, so that a message of a test is what the assistant answers.
"""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.rpc.http_setup import HttpSetup, Sent, events_of, http_router
from tests.rpc.router_setup import BACKEND

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/responses"
TEMPLATE = "{# <tool_call> </think> #}{{ messages[0].content }}"
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
CALL = '<tool_call>{"name": "f", "arguments": {"x": [1]}}</tool_call>'
TEXT = f"<think>Hm</think>Yes{CALL}"
BODY: dict[str, Any] = {
    "input": f"{TEXT}END",
    "max_output_tokens": 120,
    "tools": TOOLS,
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 1,
}
EXTRA = {"stop": ["END"]}
KINDS = ["reasoning", "message", "function_call"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory) -> AsyncIterator[HttpSetup]:
    directory = tmp_path_factory.mktemp("model")
    async with http_router(directory, chat_template=TEMPLATE, grace_time_s=3600.0) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(setup) -> AsyncIterator[AsyncOpenAI]:
    base_url = f"http://{setup.router.http_address}/v1"
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as made:
        yield made


@pytest.mark.parametrize(("parallel", "number"), [(False, 1), (True, 2)])
async def test_one_call_unless_several_may_be_made(setup, client, parallel, number) -> None:
    body = {**BODY, "input": f"{CALL}\n{CALL}END", "parallel_tool_calls": parallel}
    response = await client.responses.create(model="fake", **body, extra_body=EXTRA)
    assert [item.type for item in response.output] == ["function_call"] * number
    assert response.parallel_tool_calls == parallel
    sent = await setup.events(PATH, {**body, **EXTRA})
    assert len(sent[-1].data["response"]["output"]) == number
    assert sum(each.data["type"] == "response.output_item.added" for each in sent) == number


async def test_a_response_has_items(client) -> None:
    response = await client.responses.create(model="fake", **BODY, extra_body=EXTRA)
    assert [item.type for item in response.output] == KINDS
    assert {item.status for item in response.output} == {response.status} == {"completed"}
    reasoning, message, call = response.output
    assert [part.text for part in reasoning.content] == ["Hm"]
    assert response.output_text == message.content[0].text == "Yes"
    assert (call.name, json.loads(call.arguments)) == ("f", {"x": [1]})
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens


async def test_a_stream_brings_the_same(client) -> None:
    asked = {"model": "fake", **BODY, "extra_body": EXTRA, "extra_headers": {"X-Request-ID": "a"}}
    whole = await client.responses.create(**asked)
    async with client.responses.stream(**asked) as stream:
        events = [event async for event in stream]
        streamed = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [each.model_dump(exclude={"parsed_arguments"}) for each in streamed.output[2:]] == [
        each.model_dump() for each in whole.output[2:]
    ]
    assert streamed.output_text == whole.output_text
    assert streamed.usage == whole.usage
    types = [event.type for event in events]
    for name in ("reasoning_text", "output_text", "function_call_arguments"):
        assert types.count(f"response.{name}.done") == 1
    added = [event for event in events if event.type == "response.output_item.added"]
    done = [event for event in events if event.type == "response.output_item.done"]
    assert [event.item.type for event in added] == [event.item.type for event in done] == KINDS
    assert [event.item.id for event in added] == [event.item.id for event in done]


async def test_every_token_is_shown_and_the_next_turn_takes_the_items(setup, client) -> None:
    events = await read(setup)
    token_ids = [each for event in events for each in event.data.get("token_ids", ())]
    response = events[-1].data["response"]
    assert len(token_ids) == response["usage"]["output_tokens"]
    answered = {"type": "function_call_output", "call_id": "1", "output": "2"}
    items = [{"role": "user", "content": "a"}, *response["output"], answered]
    again = await client.responses.create(model="fake", input=items, max_output_tokens=1)
    assert again.status == "incomplete"


async def test_without_tools_a_call_is_content(client) -> None:
    for body in ({**BODY, "tools": []}, {**BODY, "tool_choice": "none"}):
        response = await client.responses.create(model="fake", **body, extra_body=EXTRA)
        assert response.output_text == f"Yes{CALL}"


async def test_an_output_that_breaks_off_is_incomplete(client) -> None:
    num_tokens = len(BACKEND.encode(TEXT[:-16]).ids)
    asked = {**BODY, "max_output_tokens": num_tokens}
    response = await client.responses.create(model="fake", **asked, extra_body=EXTRA)
    assert response.status == "incomplete"
    assert [item.status for item in response.output] == ["completed", "completed", "incomplete"]
    assert response.output[2].arguments.startswith('{"x": [')


async def test_a_call_that_breaks_is_incomplete(client) -> None:
    broken = CALL.replace("[1]", "[1")
    asked = {**BODY, "input": f"{broken}{CALL}END"}
    response = await client.responses.create(model="fake", **asked, extra_body=EXTRA)
    assert [item.type for item in response.output] == ["function_call"] * 2
    assert [item.status for item in response.output] == ["incomplete", "completed"]


async def read(setup: HttpSetup, num: int | None = None, **body: Any) -> list[Sent]:
    """Return the first events of a stream, or all of them; then break it off."""
    sent = {**BODY, **EXTRA, "stream": True, "background": True, "seed": 4, **body}
    headers = {"x-request-id": "mine"}
    async with setup.http.stream("POST", PATH, json=sent, headers=headers) as response:
        return await take(response, num)


async def take(response, num: int | None = None) -> list[Sent]:
    assert response.status_code == 200, await response.aread()
    events = []
    async with aclosing(events_of(response)) as each:
        async for event in each:
            events.append(event)
            if len(events) == num:
                break
    return events


async def test_a_stream_that_broke_goes_on_within_a_call(setup) -> None:
    whole = await read(setup)
    shown = [without_times(event) for event in whole]
    assert [event.data["sequence_number"] for event in whole] == list(range(len(whole)))
    for num in range(1, len(whole), 4):
        first = await read(setup, num)
        own = first[0].data["response"]
        query = {"starting_after": num - 1, "stream": "true"}
        async with setup.http.stream("GET", f"{PATH}/{own['id']}", params=query) as response:
            assert [without_times(each) for each in await take(response)] == shown[num:]
        resume = {"id": own["id"], "created_at": own["created_at"], "starting_after": num - 1}
        again = await read(setup, resume={**resume, "seed": 4})
        assert [without_times(each) for each in again] == shown[num:]


def without_times(event: Sent) -> Any:
    data = dict(event.data)
    if "response" in data:
        data["response"] = {**data["response"], "created_at": 0, "completed_at": None}
    return event.id, data
