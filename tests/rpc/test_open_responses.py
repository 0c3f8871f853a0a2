"""The Open Responses specification (openresponses.org, 2026-04-24): cases of its compliance test.

Ten of its seventeen: those over WebSocket, with compaction and with an image are not served. Every
object has the fields that the specification requires, and every event is one of its kinds.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.rpc.http_setup import HttpSetup, http_router

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/responses"
TEMPLATE = "{# <tool_call> </think> #}{% for m in messages %}{{ m.content or '' }}{% endfor %}"
# Of ResponseResource.
REQUIRED = {
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model"),
    *("previous_response_id", "instructions", "output", "error", "tools", "tool_choice"),
    *("truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty"),
    *("frequency_penalty", "top_logprobs", "temperature", "reasoning", "user", "usage"),
    *("max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata"),
    *("safety_identifier", "prompt_cache_key"),
}
USAGE = {
    *("input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details"),
    "total_tokens",
}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}
# The fake model repeats its prompt.
CALL = '<tool_call>{"name": "get_weather", "arguments": {"location": "San Francisco"}}</tool_call>'
ASKED = "What's the weather like in San Francisco?"


def said(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


CALLED = [
    said("user", ASKED),
    {
        "type": "function_call",
        "call_id": "call_1",
        "name": "get_weather",
        "arguments": '{"location": "San Francisco"}',
    },
    {"type": "function_call_output", "call_id": "call_1", "output": "18 degrees"},
]
CASES: dict[str, dict[str, Any]] = {
    "basic-response": {"input": [said("user", "Say hello in exactly 3 words.")]},
    "streaming-response": {"input": [said("user", "Count from 1 to 5.")]},
    "system-prompt": {"input": [said("system", "You are a pirate."), said("user", "Say hello.")]},
    "developer-message": {"input": [said("developer", "Be brief."), said("user", "Say hello.")]},
    "multi-turn": {
        "input": [
            said("user", "My name is Alice."),
            said("assistant", "Hello Alice!"),
            said("user", "What is my name?"),
        ]
    },
    "text-parts": {
        "input": [said("user", [{"type": "input_text", "text": "Say hello."}])],
        "instructions": "Be brief.",
    },
    "tool-calling": {"input": [said("user", f"{CALL}END")], "tools": [WEATHER]},
    "tool-calling-streaming": {"input": [said("user", f"{CALL}END")], "tools": [WEATHER]},
    "tool-result": {"input": CALLED, "tools": [WEATHER]},
    "reasoning-returned": {
        "input": [
            said("user", ASKED),
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Look it up."}],
            },
            *CALLED[1:],
        ],
        "tools": [WEATHER],
    },
}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory) -> AsyncIterator[HttpSetup]:
    async with http_router(tmp_path_factory.mktemp("model"), chat_template=TEMPLATE) as made:
        yield made


def check(response: dict[str, Any]) -> None:
    """Check that a finished response is what the specification says."""
    assert response.keys() >= REQUIRED
    assert response["usage"].keys() >= USAGE
    assert response["status"] == "completed", response
    assert response["completed_at"] >= response["created_at"]
    assert response["output"]
    assert isinstance(response["reasoning"], dict)
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        assert isinstance(response[name], float)
    for tool in response["tools"]:
        assert tool.keys() >= {"type", "name", "description", "parameters", "strict"}
    for item in response["output"]:
        assert item["id"]
        assert item["status"] == "completed"
        if item["type"] == "message":
            assert item["role"] == "assistant"
            for part in item["content"]:
                assert part.keys() >= {"type", "text", "annotations", "logprobs"}
    Response.model_validate(response)


@pytest.mark.parametrize("case", CASES)
async def test_a_case_of_the_compliance_test_passes(setup: HttpSetup, case: str) -> None:
    body = {"model": "fake", **CASES[case], "stop": ["END"]}
    is_call = case in ("tool-calling", "tool-calling-streaming")
    if not is_call:
        body["stop"] = [" hello", "Alice", "5", "degrees"]
    answer = await setup.post(PATH, {**body, "stream": False})
    assert answer.status_code == 200, answer.text
    check(answer.json())
    events = await setup.events(PATH, body)
    kinds = [each.data["type"] for each in events]
    for number, each in enumerate(events):
        assert each.event == each.data["type"]
        assert each.data["sequence_number"] == number
        EVENTS.validate_python(each.data)
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    final = events[-1].data["response"]
    check(final)
    assert shown(final) == shown(answer.json())
    if is_call:
        [call] = final["output"]
        assert call["type"] == "function_call"
        assert json.loads(call["arguments"]) == {"location": "San Francisco"}
        added = events[kinds.index("response.output_item.added")].data["item"]
        done = events[kinds.index("response.output_item.done")].data["item"]
        assert added["type"] == done["type"] == "function_call"
        assert "response.function_call_arguments.delta" in kinds
        assert "response.function_call_arguments.done" in kinds


def shown(response: dict[str, Any]) -> list[Any]:
    """What a response says, without the ids of its items."""
    return [
        (item["type"], item.get("content"), item.get("name"), item.get("arguments"))
        for item in response["output"]
    ]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (
            {
                "input": [
                    said("user", [{"type": "input_image", "image_url": "data:image/png;base64,AA"}])
                ]
            },
            "input_image",
        ),
        ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(setup: HttpSetup, body, names: str) -> None:
    answer = await setup.post(PATH, body)
    assert answer.status_code == 400
    assert names in answer.json()["error"]["message"]


async def test_compaction_is_no_call_that_is_there(setup: HttpSetup) -> None:
    answer = await setup.post(f"{PATH}/compact", {"input": "a"})
    assert answer.status_code == 405
    assert f"{PATH}/compact" in answer.json()["error"]["message"]
