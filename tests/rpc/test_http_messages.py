"""/v1/messages of a real router, asked by Anthropic's own client.

The fake model repeats its prompt, so that a message of a test is what the assistant answers.
"""

import re
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic

from quire import SamplingParams
from quire.v1 import scheduler_pb2
from tests.rpc.http_setup import HttpSetup, Sent, events_of, http_router
from tests.rpc.router_setup import BACKEND

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/messages"
TEMPLATE = (
    "{# <tool_call> </think> #}{% for m in messages %}"
    "{% if m.role != 'user' %}<{{ m.role }}>{% endif %}{{ m.reasoning_content }}{{ m.content or ''"
    " }}{% for call in m.tool_calls or [] %}[{{ call.function | tojson }}]{% endfor %}{% endfor %}"
    "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}{{ reasoning_effort }}"
)
SCHEMA = {"type": "object", "properties": {"x": {"type": "array"}}}
TOOLS = [{"name": "f", "description": "d", "input_schema": SCHEMA}]
CALL = '<tool_call>{"name": "f", "arguments": {"x": [1]}}</tool_call>'
TEXT = f"<think>Hm</think>Yes 中文{CALL}"
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": f"{TEXT}END"}],
    "max_tokens": 120,
    "stop_sequences": ["END"],
    "tools": TOOLS,
}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://x"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory) -> AsyncIterator[HttpSetup]:
    directory = tmp_path_factory.mktemp("model")
    async with http_router(directory, chat_template=TEMPLATE) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(setup) -> AsyncIterator[AsyncAnthropic]:
    base_url = f"http://{setup.router.http_address}"
    async with AsyncAnthropic(base_url=base_url, api_key="none", max_retries=0) as made:
        yield made


@pytest.mark.parametrize(("disable", "number"), [(True, 1), (False, 2)])
async def test_one_call_unless_several_may_be_made(client, disable, number) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": disable}
    messages = [{"role": "user", "content": f"{CALL}\n{CALL}END"}]
    body = {**BODY, "messages": messages, "tool_choice": choice}
    message = await client.messages.create(model="fake", **body)
    assert [each.type for each in message.content] == ["tool_use"] * number
    async with client.messages.stream(model="fake", **body) as stream:
        final = await stream.get_final_message()
    assert [each.input for each in final.content] == [{"x": [1]}] * number


async def test_a_message_is_that_of_grpc(setup, client) -> None:
    messages = [{"role": "user", "content": "class 中文"}]
    same = await setup.client.chat(messages, SamplingParams(max_tokens=7))
    message = await client.messages.create(
        model="fake",
        messages=messages,
        max_tokens=7,
        metadata={"user_id": "u"},
        service_tier="auto",
        extra_body={"return_token_ids": True},
    )
    assert [block.text for block in message.content] == [same.text]
    assert (message.role, message.stop_reason) == ("assistant", "max_tokens")
    prompt_ids = BACKEND.encode("class 中文").ids
    assert (message.usage.input_tokens, message.usage.output_tokens) == (len(prompt_ids), 7)
    assert message.model_extra["prompt_token_ids"] == prompt_ids
    assert tuple(message.model_extra["token_ids"]) == same.token_ids
    count = await client.messages.count_tokens(model="fake", messages=messages)
    assert count.input_tokens == len(prompt_ids)


async def test_a_message_has_blocks(client) -> None:
    message = await client.messages.create(model="fake", **BODY)
    assert (message.stop_reason, message.stop_sequence) == ("tool_use", None)
    thinking, text, call = message.content
    assert (thinking.type, thinking.thinking) == ("thinking", "Hm")
    assert (text.type, text.text) == ("text", "Yes 中文")
    assert (call.type, call.name, call.input) == ("tool_use", "f", {"x": [1]})


async def test_why_it_ended(client) -> None:
    ask = {"model": "fake", "messages": [{"role": "user", "content": "aENDb"}], "max_tokens": 9}
    stopped = await client.messages.create(**ask, stop_sequences=["END"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "END")
    full = await client.messages.create(**{**ask, "max_tokens": 100_000}, timeout=60)
    assert full.stop_reason == "model_context_window_exceeded"
    by_token = await client.messages.create(
        **ask, extra_body={"stop_token_ids": BACKEND.encode("E").ids}
    )
    assert (by_token.stop_reason, by_token.stop_sequence) == ("end_turn", None)


async def test_arguments_that_break_off_are_told(client) -> None:
    ask = {**BODY, "messages": [{"role": "user", "content": f"{CALL[:-16]}END"}]}
    [call] = (await client.messages.create(model="fake", **ask)).content
    assert call.input == {"INVALID_JSON": '{"x": ['}


@pytest.mark.parametrize("value", ['"\\ud800"', "1e999"])
async def test_arguments_that_no_answer_could_hold_are_told(client, value) -> None:
    call = f'<tool_call>{{"name": "f", "arguments": {{"x": {value}}}}}</tool_call>'
    ask = {**BODY, "messages": [{"role": "user", "content": f"{call}END"}]}
    [block] = (await client.messages.create(model="fake", **ask)).content
    assert block.input == {"INVALID_JSON": f'{{"x": {value}}}'}


async def test_a_stream_tells_the_same(client) -> None:
    ask = {"model": "fake", **BODY, "extra_headers": {"X-Request-ID": "same"}}
    whole = await client.messages.create(**ask, extra_body={"return_token_ids": True})
    async with client.messages.stream(**ask) as stream:
        events = [event async for event in stream]
        streamed = await stream.get_final_message()
    shown = ("id", "stop_reason", "stop_sequence", "usage", "model")
    assert [getattr(streamed, name) for name in shown] == [getattr(whole, name) for name in shown]
    blocks = [each.model_dump(exclude={"parsed_output"}) for each in streamed.content]
    assert blocks == [each.model_dump() for each in whole.content]
    deltas = [each.delta for each in events if each.type == "content_block_delta"]
    assert {each.type for each in deltas} == {"thinking_delta", "text_delta", "input_json_delta"}


async def test_each_token_is_in_one_event_numbered_by_the_tokens(setup) -> None:
    whole = await setup.post(PATH, {**BODY, "return_token_ids": True})
    events = await setup.events(PATH, BODY)
    assert [event.id for event in events] == [str(number) for number in range(1, len(events) + 1)]
    assert [event.event for event in events] == [event.data["type"] for event in events]
    token_ids = [event.data["token_ids"] for event in events if "token_ids" in event.data]
    assert [token_id for [token_id] in token_ids] == whole.json()["token_ids"]
    types = [event.event for event in events if event.event != "ping"]
    assert types[:2] == ["message_start", "content_block_start"]
    assert types[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    blocks = [each.data for each in events if each.event == "content_block_start"]
    assert [each["content_block"]["type"] for each in blocks] == ["thinking", "text", "tool_use"]
    assert [each["index"] for each in blocks] == [0, 1, 2]


@pytest.mark.parametrize("resumable", [True, False])
async def test_a_stream_that_broke_goes_on_after_any_event(setup, resumable) -> None:
    body = {**BODY, "seed": 4, "stream": True, "resumable": resumable}
    whole = shown(await setup.events(PATH, body))
    for num in range(1, len(whole), 5):
        async with setup.http.stream("POST", PATH, json=body) as response:
            events = events_of(response)
            first = [await anext(events) for _ in range(num)]
        message = first[0].data["message"]
        resume = {"id": message["id"], "seed": 4, "starting_after": num}
        resume["created"] = message["created"]
        rest = await setup.events(PATH, {**body, "resume": resume})
        assert shown(rest) == whole[num:]
        headers = {"x-request-id": message["id"].removeprefix("msg_"), "last-event-id": str(num)}
        assert shown(await setup.events(PATH, body, **headers)) == whole[num:]


def shown(events: list[Sent]) -> list[Any]:
    """What events show, but for the ids and times of their request."""
    found = []
    for event in events:
        data = {name: value for name, value in event.data.items() if name != "message"}
        if block := dict(data.get("content_block", {})):
            block.pop("id", None)
            data["content_block"] = block
        found.append((event.id, data))
    return found


async def test_blocks_become_messages(setup, client) -> None:
    text = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "user", "content": text},
        {"role": "user", "content": "c"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "d"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"x": "é"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": text, "is_error": False},
                {"type": "text", "text": "e"},
            ],
        },
    ]
    head = '<system>sa\nb\n\nc<assistant>td[{"name": "f", "arguments": {"x": "é"}}]<tool>a\nbe'
    for more, prompt in (
        ({}, head),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, f"{head}True"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, f"{head}Falselow"),
        ({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": 1}},
         f"{head}1"),
        ({"thinking": {"type": "adaptive"}, "tool_choice": {"type": "none"}}, head),
    ):  # fmt: skip
        body = {"messages": messages, "max_tokens": 1, "return_token_ids": True, **more}
        body["system"] = [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]
        answer = await setup.post(PATH, body)
        assert answer.json()["prompt_token_ids"] == BACKEND.encode(prompt).ids, answer.text


async def test_a_turn_of_the_assistant_is_continued(setup) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b "}]
    answer = await setup.post(
        PATH, {"messages": messages, "max_tokens": 1, "return_token_ids": True}
    )
    assert answer.json()["prompt_token_ids"] == BACKEND.encode("a<assistant>b ").ids
    calls = [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]
    messages[1]["content"] = calls  # type: ignore[assignment]
    answer = await setup.post(PATH, {"messages": messages, "max_tokens": 1})
    assert answer.json()["error"]["message"].startswith("messages: must end with the user's turn")


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"content": "no such file", "is_error": True}, "Error: no such file"),
        ({"content": [{"type": "text", "text": "a"}], "is_error": True}, "Error: a"),
        ({"content": "Error: no such file", "is_error": True}, "Error: no such file"),
        ({"is_error": True}, "Error"),
        ({"content": "a", "is_error": False}, "a"),
        ({"content": "a"}, "a"),
        ({}, ""),
    ],
)
async def test_a_tool_that_failed_is_told_to_the_model(setup, result, told) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [TOOL_USE]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", **result}]},
    ]
    body = {"messages": messages, "max_tokens": 1, "return_token_ids": True}
    answer = await setup.post(PATH, body)
    prompt = f'a<assistant>[{{"name": "f", "arguments": {{}}}}]<tool>{told}'
    assert answer.json()["prompt_token_ids"] == BACKEND.encode(prompt).ids, answer.text


def blocks(role: str, block: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [block]}]}


USER = {"role": "user"}
TOOL_USE = {"type": "tool_use", "id": "1", "name": "f", "input": {}}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER]}, "messages[0].content"),
        ({"messages": [{**USER, "content": 5}]}, "messages[0].content"),
        ({"messages": [{**USER, "content": [IMAGE]}]}, "messages[0].content[0].type"),
        ({"messages": [{**USER, "content": [{"type": "document"}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{**USER, "content": [TOOL_USE]}]}, "messages[0].content[0].type"),
        (blocks("user", {"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]}),
         "messages[0].content[0].content[0].type"),
        (blocks("user", {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text"}]}),
         "messages[0].content[0].content[0].text"),
        (blocks("user", {"type": "tool_result", "content": "x"}),
         "messages[0].content[0].tool_use_id"),
        (blocks("user", {"type": "tool_result", "tool_use_id": "1", "is_error": "yes"}),
         "messages[0].content[0].is_error"),
        (blocks("user", {"type": "text"}), "messages[0].content[0].text"),
        (blocks("system", {"type": "text"}), "messages[0].content[0].text"),
        (blocks("assistant", {"type": "text", "text": None}), "messages[0].content[0].text"),
        (blocks("assistant", {"type": "thinking"}), "messages[0].content[0].thinking"),
        (blocks("assistant", {"type": "redacted_thinking"}), "messages[0].content[0].data"),
        *((blocks("assistant", {**TOOL_USE, name: None}), f"messages[0].content[0].{name}")
          for name in ("id", "name", "input")),
        ({"system": [{"type": "text"}]}, "system[0].text"),
        ({"messages": [{"role": "assistant", "content": [{**TOOL_USE, "input": "x"}]}]},
         "messages[0].content[0].input"),
        ({"messages": [], "system": "be"}, "messages"),
        ({"system": [IMAGE]}, "system[0].type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f", "input_schema": 5}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tools": [], "tool_choice": {"type": "any"}}, "tools"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"stop_sequences": [5]}, "stop_sequences"),
        ({"temperature": -1}, "temperature"),
        ({"n": 2}, "n"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"output_config": {"format": {}}}, "output_config.format.type"),
        ({"resume": {"id": "x", "seed": 1}}, "resume"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
    ],
)  # fmt: skip
async def test_a_bad_field_is_named_in_anthropics_shape(setup, body, field) -> None:
    response = await setup.post(PATH, {**BODY, **body}, **{"x-request-id": "mine"})
    assert response.status_code == 400, response.text
    answer = response.json()
    assert answer.keys() == {"type", "error", "request_id"}
    assert (answer["type"], answer["request_id"]) == ("error", "mine")
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["message"].startswith(f"{field}: ")


async def test_a_full_queue_is_an_overload(setup, client) -> None:
    setup.fake.refuse_next(
        scheduler_pb2.Refused(
            reason=scheduler_pb2.REFUSAL_REASON_QUEUE_FULL, message="full", retry_after_ms=1500
        )
    )
    with pytest.raises(anthropic.OverloadedError) as full:
        await client.messages.create(model="fake", **BODY)
    assert full.value.body["error"]["type"] == "overloaded_error"
    assert full.value.response.headers["retry-after"] == "2"


async def test_a_stream_that_waits_pings_and_ends_with_an_error_as_an_event(tmp_path) -> None:
    async with http_router(tmp_path, chat_template=TEMPLATE, sse_keep_alive_interval=0.05) as setup:
        setup.fake.hold()
        *pings, error = await setup.late_events(PATH, BODY, **{"x-request-id": "mine"})
        # It has begun by then, or waits for its template still.
        shown = {(each.event, each.id) for each in pings}
        assert shown - {("message_start", "1")} == {("ping", "")}
        assert (error.event, error.data["type"]) == ("error", "error")
        assert error.data["request_id"] == "mine"
        assert error.data["error"]["type"] == "timeout_error"
        await setup.fake.until(lambda: setup.fake.num_running() == 0)


async def test_errors_are_the_clients_own(setup, client) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.create(**{"model": "other", **BODY})
    assert missing.value.body["error"]["type"] == "not_found_error"
    assert missing.value.request_id == missing.value.body["request_id"] != ""
    refused = await setup.post(PATH, BODY, **{"anthropic-version": "2023-01-01"})
    assert refused.json()["error"]["message"].startswith("anthropic-version: must be 2023-06-01")
    for content in (b"{", b"[]"):
        response = await setup.http.post(
            PATH, content=content, headers={"content-type": "application/json"}
        )
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"
    response = await setup.http.post(PATH, content=b"{}")
    assert (response.status_code, response.json()["type"]) == (415, "error")


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", f"{PATH}/batches", 404, "not_found_error"),
        ("POST", f"{PATH}/", 404, "not_found_error"),
        ("GET", PATH, 405, "invalid_request_error"),
        ("GET", f"{PATH}/count_tokens", 405, "invalid_request_error"),
    ],
)
async def test_no_such_path_or_method_is_anthropics_error(
    setup, method, path, status, kind
) -> None:
    response = await setup.http.request(method, path)
    assert response.status_code == status
    answer = response.json()
    assert (answer["type"], answer["error"]["type"]) == ("error", kind)
    assert answer["request_id"] == response.headers["request-id"]
    other = await setup.http.request(method, f"{PATH}s")
    assert (other.status_code, set(other.json())) == (404, {"error"})


async def test_a_conversation_that_is_too_long_is_told_in_anthropics_words(setup) -> None:
    body = {"messages": [{"role": "user", "content": "long " * 300}], "max_tokens": 4}
    answer = await setup.post(PATH, body)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert re.fullmatch(r"prompt is too long: \d+ tokens > 255 maximum", message), message
