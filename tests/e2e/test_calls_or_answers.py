"""Tools of nested types, strict ones, formats beside them: by all three APIs of real services."""

import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel, Field

from tests.e2e.conftest import SharedClusters

MESSAGES: list[Any] = [{"role": "user", "content": "What does list.sort do?"}]
SEEDS = range(2)


class Stop(BaseModel, extra="forbid"):
    kind: Literal["stop"]
    place: Literal["a", "b </s>"]


class Ride(BaseModel, extra="forbid"):
    kind: Literal["ride"]
    hours: int = Field(ge=0, le=9)


class Trip(BaseModel, extra="forbid"):
    legs: list[Stop | Ride] = Field(max_length=2)
    next: "Trip | None"


class Answer(BaseModel, extra="forbid"):
    sorts: bool


SCHEMA, FORMAT = Trip.model_json_schema(), Answer.model_json_schema()
FUNCTION = {"name": "plan", "parameters": SCHEMA}


@pytest.fixture
async def address(shared_clusters: SharedClusters) -> str:
    cluster = shared_clusters.get(port=0, tool_call_parser="hermes")
    return f"http://{cluster.router.http_address}"


@pytest.fixture
async def clients(address: str) -> AsyncIterator[tuple[openai.AsyncOpenAI, Any]]:
    async with (
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as one,
        anthropic.AsyncAnthropic(base_url=address, api_key="none", max_retries=0) as other,
    ):
        yield one, other


async def of_chat(clients: Any, seed: int, strict: bool, is_format: bool, choice: str) -> Any:
    body: dict[str, Any] = {"parallel_tool_calls": False, "tool_choice": choice}
    if is_format:
        schema = {"name": "answer", "schema": FORMAT}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    tools = [{"type": "function", "function": {**FUNCTION, "strict": strict}}]
    made = await clients[0].chat.completions.create(
        model="", messages=MESSAGES, tools=tools, seed=seed, max_tokens=400, **body
    )
    [choice_made] = made.choices
    calls = [each.function.arguments for each in choice_made.message.tool_calls or ()]
    return calls, choice_made.message.content or "", choice_made.finish_reason != "length"


async def of_response(clients: Any, seed: int, strict: bool, is_format: bool, choice: str) -> Any:
    body: dict[str, Any] = {"parallel_tool_calls": False, "tool_choice": choice}
    if is_format:
        body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": FORMAT}}
    tools = [{"type": "function", **FUNCTION, "strict": strict}]
    made = await clients[0].responses.create(
        model="",
        input=MESSAGES,
        tools=tools,
        max_output_tokens=400,
        extra_body={"seed": seed},
        **body,
    )
    calls = [item.arguments for item in made.output if item.type == "function_call"]
    return calls, made.output_text, made.status == "completed"


async def of_message(clients: Any, seed: int, strict: bool, is_format: bool, choice: str) -> Any:
    kind = {"auto": "auto", "required": "any"}[choice]
    body: dict[str, Any] = {"tool_choice": {"type": kind, "disable_parallel_tool_use": True}}
    extra: dict[str, Any] = {"seed": seed}
    if is_format:
        extra["output_config"] = {"format": {"type": "json_schema", "schema": FORMAT}}
    tools = [{"name": "plan", "input_schema": SCHEMA, "strict": strict}]
    made = await clients[1].messages.create(
        model="", messages=MESSAGES, tools=tools, max_tokens=400, extra_body=extra, **body
    )
    calls = [json.dumps(each.input) for each in made.content if each.type == "tool_use"]
    text = "".join(each.text for each in made.content if each.type == "text")
    return calls, text, made.stop_reason != "max_tokens"


@pytest.mark.parametrize("ask", [of_chat, of_response, of_message])
async def test_a_call_of_nested_types_is_forced_once(clients: Any, ask: Any) -> None:
    for seed in SEEDS:
        calls, text, is_whole = await ask(clients, seed, False, False, "required")
        assert (len(calls), text) == (1, ""), f"seed {seed}"
        if is_whole:
            Trip.model_validate_json(calls[0])


@pytest.mark.parametrize("ask", [of_chat, of_response, of_message])
async def test_a_call_or_an_answer_in_the_format(clients: Any, ask: Any) -> None:
    num_whole = 0
    for seed in SEEDS:
        calls, text, is_whole = await ask(clients, seed, True, True, "auto")
        if is_whole:
            num_whole += 1
            assert bool(calls) != bool(text), f"seed {seed}"
            for each in calls:
                Trip.model_validate_json(each)
            if text:
                Answer.model_validate_json(text)
    assert num_whole


@pytest.mark.parametrize("ask", [of_chat, of_response, of_message])
async def test_a_strict_tool_leaves_the_answer_free(clients: Any, ask: Any) -> None:
    for seed in SEEDS:
        calls, text, is_whole = await ask(clients, seed, True, False, "auto")
        assert calls or text
        for each in calls if is_whole else ():
            Trip.model_validate_json(each)
