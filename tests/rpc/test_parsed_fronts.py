"""One table of outputs: through every front, streamed and not, they mean the same calls.

The fake model repeats its prompt, so that a case of the table is what the assistant answers.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from quire import SamplingParams
from quire.contract.chat import Tool
from quire.contract.outputs import Delta, Finished
from quire.sdk.calls import ChatOptions
from router.chat.parsers.formats import OutputFormat
from tests.fakes.fake_scheduler import MODEL, FakeScheduler
from tests.output_formats import CASES, TOOLS
from tests.rpc.http_setup import HttpSetup, http_router

# What no text of the table has.
END = "~~"
TEMPLATE = "{{ messages[0].content }}~~{{ prompt_end }}"
FORMATS = sorted({case[0] for case in CASES}, key=str)


@dataclass
class Read:
    """What a front has sent."""

    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)

    def begin(self, name: str) -> None:
        self.calls.append([name, ""])

    def add(self, text: str) -> None:
        self.calls[-1][1] += text


async def of_chat(setup: HttpSetup, body: dict[str, Any]) -> list[Read]:
    asked = {**body, "stop": [END], "tools": [openai_tool(tool) for tool in TOOLS]}
    found = [Read(), Read()]
    whole = (await setup.post("/v1/chat/completions", asked)).json()["choices"][0]["message"]
    deltas = [
        each.choice["delta"] for each in (await setup.events("/v1/chat/completions", asked))[:-1]
    ]
    for read, messages in zip(found, ([whole], deltas), strict=True):
        for each in messages:
            read.content += each.get("content") or ""
            read.reasoning += each.get("reasoning_content") or ""
            for call in each.get("tool_calls", ()):
                if "id" in call:
                    read.begin(call["function"]["name"])
                read.add(call["function"]["arguments"])
    return found


async def of_messages(setup: HttpSetup, body: dict[str, Any]) -> list[Read]:
    tools = [
        {"name": each.name, "input_schema": json.loads(each.parameters or "{}")} for each in TOOLS
    ]
    asked = {**body, "stop_sequences": [END], "tools": tools}
    whole, streamed = Read(), Read()
    for block in (await setup.post("/v1/messages", asked)).json()["content"]:
        match block["type"]:
            case "text":
                whole.content += block["text"]
            case "thinking":
                whole.reasoning += block["thinking"]
            case "tool_use":
                whole.begin(block["name"])
                broken = block["input"].get("INVALID_JSON")
                whole.add(json.dumps(block["input"]) if broken is None else broken)
    for event in await setup.events("/v1/messages", asked):
        if event.event == "content_block_start" and event.data["content_block"].get("name"):
            streamed.begin(event.data["content_block"]["name"])
        elif event.event == "content_block_delta":
            delta = event.data["delta"]
            streamed.content += delta.get("text", "")
            streamed.reasoning += delta.get("thinking", "")
            if "partial_json" in delta:
                streamed.add(delta["partial_json"])
    return [whole, streamed]


async def of_responses(setup: HttpSetup, body: dict[str, Any]) -> list[Read]:
    tools = [{"type": "function", **openai_tool(each)["function"]} for each in TOOLS]
    asked = {"input": body["messages"], "max_output_tokens": body["max_tokens"], "stop": [END]}
    asked |= {"tools": tools, "chat_template_kwargs": body["chat_template_kwargs"]}
    streamed = Read()
    events = await setup.events("/v1/responses", asked)
    for event in events:
        delta = event.data.get("delta")
        match event.event:
            case "response.output_item.added" if "name" in event.data["item"]:
                streamed.begin(event.data["item"]["name"])
            case "response.output_text.delta":
                streamed.content += delta
            case "response.reasoning_text.delta":
                streamed.reasoning += delta
            case "response.function_call_arguments.delta":
                streamed.add(delta)
    whole = (await setup.post("/v1/responses", asked)).json()
    return [of_items(whole["output"]), streamed, of_items(events[-1].data["response"]["output"])]


def of_items(items: Iterable[Any]) -> Read:
    read = Read()
    for item in items:
        match item["type"]:
            case "message":
                read.content += item["content"][0]["text"]
            case "reasoning":
                read.reasoning += item["content"][0]["text"]
            case "function_call":
                read.begin(item["name"])
                read.add(item["arguments"])
    return read


async def of_grpc(setup: HttpSetup, body: dict[str, Any]) -> list[Read]:
    params = SamplingParams(max_tokens=body["max_tokens"], stop=(END,))
    options: ChatOptions = {
        "tools": TOOLS,
        "chat_template_kwargs": body["chat_template_kwargs"],
        "parse_output": True,
    }
    whole = await setup.client.chat(body["messages"], params, **options)
    calls = [[call.name, call.arguments] for call in whole.tool_calls]
    streamed = Read()
    async for event in setup.client.stream_chat(body["messages"], params, **options):
        if isinstance(event, Delta | Finished) and event.parsed is not None:
            streamed.content += event.parsed.content
            streamed.reasoning += event.parsed.reasoning
            for call in event.parsed.tool_calls:
                if call.name:
                    streamed.begin(call.name)
                streamed.add(call.arguments)
    return [Read(whole.content or "", whole.reasoning, calls), streamed]


FRONTS = {"chat": of_chat, "messages": of_messages, "responses": of_responses, "grpc": of_grpc}


def openai_tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "parameters": json.loads(tool.parameters or "{}")}
    return {"type": "function", "function": function}


def plain(calls: Iterable[list[str]]) -> list[Any]:
    """Calls whose arguments are compared as JSON, where they are any."""
    found: list[Any] = []
    for name, arguments in calls:
        try:
            found.append((name, json.loads(arguments)))
        except ValueError:
            found.append((name, arguments))
    return found


@pytest.mark.parametrize("output", FORMATS, ids=str)
async def test_every_front_reads_the_same(tmp_path, output: OutputFormat) -> None:
    settings = {"tool_call_parser": output.tools, "reasoning_parser": output.reasoning}
    cases = [case[1:] for case in CASES if case[0] == output]
    fake = FakeScheduler(model=replace(MODEL, max_model_len=2048))
    async with http_router(tmp_path, fake, chat_template=TEMPLATE, **settings) as setup:
        for prompt_end, text, content, reasoning, calls in cases:
            body = {
                "messages": [{"role": "user", "content": text}],
                "chat_template_kwargs": {"prompt_end": prompt_end},
                "max_tokens": 1000,
            }
            for front, answers in FRONTS.items():
                for read in await answers(setup, body):
                    shown = (read.content, read.reasoning, plain(read.calls))
                    assert shown == (content, reasoning, plain(calls)), (front, text)
