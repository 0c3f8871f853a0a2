"""Answers under a grammar: what was asked for by every API, the same whatever dies on the way."""

import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from launch.cluster.supervisor import Cluster
from quire import AsyncClient, SamplingParams, StructuredOutputsParams
from quire.contract.errors import NO_TOKEN, InvalidRequestError
from quire.contract.outputs import Completion, Delta, FinishReason
from quire.sdk.collect import Collector
from tests import depth
from tests.chaos import schemas
from tests.e2e.conftest import SharedClusters

PROMPT = "The list class"
MESSAGES = [{"role": "user", "content": "What does list.sort do?"}]
SCHEMA = {
    "type": "object",
    "properties": {"sorts": {"type": "boolean"}, "size": {"enum": [1, 20, 300]}},
    "required": ["sorts", "size"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("sort", "reverse")
]
PARAMS = SamplingParams(max_tokens=200, n=3, seed=3)
WORDS = StructuredOutputsParams(regex="([a-z]{2,9} ){60}")
NUM_DRAWN = depth.budget("random grammars, by four APIs", test=24, deep=300)


def is_of_schema(text: str) -> bool:
    value = json.loads(text)
    return isinstance(value["sorts"], bool) and value["size"] in (1, 20, 300) and len(value) == 2


GRAMMARS: dict[str, tuple[Any, Callable[[str], object]]] = {
    "json": (SCHEMA, is_of_schema),
    "regex": (r"\d{3}-[a-f]{4}", re.compile(r"\d{3}-[a-f]{4}").fullmatch),
    "choice": (["red", "green and blue"], ["red", "green and blue"].__contains__),
    "grammar": ('start: "a" ("b" | "c")+ "d"', re.compile("a[bc]+d").fullmatch),
}


@pytest.fixture
def cluster(shared_clusters: SharedClusters) -> Cluster:
    return shared_clusters.get(port=0)


@pytest.fixture
async def http(cluster: Cluster) -> AsyncIterator[openai.AsyncOpenAI]:
    base_url = f"http://{cluster.router.http_address}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def grpc(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.router.address) as client:
        yield client


@pytest.mark.parametrize("kind", GRAMMARS)
async def test_answers_are_what_was_asked_for(
    http: openai.AsyncOpenAI, grpc: AsyncClient, kind: str
) -> None:
    grammar, is_right = GRAMMARS[kind]
    params = replace(PARAMS, structured_outputs=StructuredOutputsParams(**{kind: grammar}))
    answers = await grpc.generate_all(PROMPT, params)
    for answer in answers:
        assert answer.finish_reason is FinishReason.STOP, answer.text
        assert is_right(answer.text), answer.text
    for extras in ({f"guided_{kind}": grammar}, {"structured_outputs": {kind: grammar}}):
        same = await http.completions.create(
            model="", prompt=PROMPT, max_tokens=200, n=3, seed=3, temperature=1, extra_body=extras
        )
        assert [choice.text for choice in same.choices] == [each.text for each in answers]


async def test_openai_s_response_formats(http: openai.AsyncOpenAI) -> None:
    asked = {"model": "", "max_tokens": 200, "seed": 3, "messages": MESSAGES}
    schema = {"type": "json_schema", "json_schema": {"name": "sorting", "schema": SCHEMA}}
    chat = await http.chat.completions.create(**asked, response_format=schema)
    text = chat.choices[0].message.content
    assert text is not None
    assert is_of_schema(text)
    response = await http.responses.create(
        model="",
        input=MESSAGES,
        max_output_tokens=200,
        extra_body={"seed": 3},
        text={"format": {"type": "json_schema", "name": "sorting", "schema": SCHEMA}},
    )
    assert response.output_text == text
    begun = await http.chat.completions.create(**asked, response_format={"type": "json_object"})
    assert (begun.choices[0].message.content or "").startswith("{")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"sort", "reverse"}),
        ({"type": "function", "function": {"name": "sort"}}, {"sort"}),
    ],
)
async def test_a_call_is_forced(
    http: openai.AsyncOpenAI, grpc: AsyncClient, choice: Any, names: set[str]
) -> None:
    # `required` lets the model call on and on, this one does: the first call is whole by then.
    asked = {"model": "", "messages": MESSAGES, "tools": TOOLS, "tool_choice": choice}
    asked |= {"max_tokens": 300, "seed": 3, "temperature": 1}
    answer = (await http.chat.completions.create(**asked)).choices[0]
    assert answer.message.tool_calls
    call = answer.message.tool_calls[0]
    assert call.function.name in names
    assert is_of_schema(call.function.arguments)
    if len(names) == 1:
        assert (answer.finish_reason, len(answer.message.tool_calls)) == ("tool_calls", 1)
        assert not answer.message.content
    params = SamplingParams(max_tokens=300, seed=3, skip_special_tokens=False)
    same = await grpc.chat(MESSAGES, params, tools=TOOLS, tool_choice=choice)
    assert call.function.name in same.text
    texts = ""
    async for chunk in await http.chat.completions.create(**asked, stream=True):
        for each in chunk.choices[0].delta.tool_calls or ():
            texts += each.function.arguments or "" if each.index == 0 else ""
    assert texts == call.function.arguments
    if isinstance(choice, dict):
        choice = {"type": "function", **choice["function"]}
    response = await http.responses.create(
        model="",
        input=MESSAGES,
        tools=[{"type": "function", **each["function"]} for each in TOOLS],
        tool_choice=choice,
        max_output_tokens=300,
        temperature=1,
        extra_body={"seed": 3},
    )
    called = next(item for item in response.output if item.type == "function_call")
    assert (called.name, called.arguments) == (call.function.name, texts)


async def test_tokens_stay_the_same_when_services_die(cluster: Cluster, grpc: AsyncClient) -> None:
    params = SamplingParams(max_tokens=400, seed=11, structured_outputs=WORDS)
    forced = {"tools": TOOLS, "tool_choice": "required"}
    chat_params = SamplingParams(max_tokens=120, seed=11)
    whole = await grpc.generate(PROMPT, params)
    whole_chat = await grpc.chat(MESSAGES, chat_params, **forced)
    assert re.fullmatch(WORDS.regex or "", whole.text)
    for name in ("worker", "scheduler", "router"):
        assert await killed(cluster, name, grpc.stream(PROMPT, params)) == comparable(whole)
    # Its client sends the grammar back that the conversation has become.
    stream = grpc.stream_chat(MESSAGES, chat_params, **forced)
    assert await killed(cluster, "router", stream) == comparable(whole_chat)


async def test_a_router_killed_in_mid_call_costs_no_argument(
    cluster: Cluster, grpc: AsyncClient
) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^[a-z ]{300}$"}}}
    schema |= {"required": ["x"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "sort", "parameters": schema}}]
    asked: dict[str, Any] = {"tools": tools, "tool_choice": tools[0], "parse_output": True}
    params = SamplingParams(max_tokens=500, seed=11)
    whole = await grpc.chat(MESSAGES, params, **asked)
    [call] = whole.tool_calls
    assert re.fullmatch("[a-z ]{300}", json.loads(call.arguments)["x"])
    assert (whole.content, whole.reasoning) == ("", "")
    stream = grpc.stream_chat(MESSAGES, params, **asked, request_id=whole.request_id)
    assert await killed(cluster, "router", stream, is_parsed=True) == comparable(whole)


def comparable(completion: Completion) -> Completion:
    return replace(completion, request_id="")


async def killed(
    cluster: Cluster, name: str, events: AsyncIterator[Any], is_parsed: bool = False
) -> Completion:
    """Read a stream, whose service is killed once there are tokens."""
    collector, num_tokens = Collector(is_parsed), 0
    async for event in events:
        collector.add(event)
        if isinstance(event, Delta) and num_tokens <= 20 < num_tokens + len(event.token_ids):
            [pid] = [each.pid for each in cluster.services if each.name.startswith(name)]
            os.kill(pid, signal.SIGKILL)
        num_tokens += len(event.token_ids) if isinstance(event, Delta) else 0
    [completion] = collector.completions()
    return comparable(completion)


@pytest.mark.budget
async def test_answers_of_random_grammars_that_end_by_themselves_are_of_them(
    cluster: Cluster,
) -> None:
    """A short `make chaos SCENARIO=schemas`."""
    outcome = await schemas.ask(
        cluster.router.address, cluster.router.http_address, seed=2, number=NUM_DRAWN
    )
    assert not outcome.wrong, "\n".join(outcome.lines())
    assert outcome.reasons.total() == NUM_DRAWN
    assert outcome.stop_share >= schemas.MIN_STOP_SHARE, "\n".join(outcome.lines())


async def test_what_leaves_no_token_is_the_request_s_fault(
    cluster: Cluster, http: openai.AsyncOpenAI, grpc: AsyncClient
) -> None:
    masks = {"allowed_token_ids": [260], "guided_regex": "[A-Z]{3}[0-9]{3}"}
    token_id = (await grpc.generate("x", SamplingParams(max_tokens=1, seed=1))).token_ids[0]
    for extras in (masks, {"allowed_token_ids": [token_id], "stop_token_ids": [token_id],
                           "min_tokens": 2}):  # fmt: skip
        answer = await http.completions.create(model="", prompt="x", extra_body=extras)
        [choice] = answer.choices
        assert choice.finish_reason == "error"
        assert choice.model_dump()["error"]["message"] == NO_TOKEN
        body = {"messages": MESSAGES, "max_tokens": 5, **extras}
        async with httpx.AsyncClient(timeout=60) as client:
            refused = await client.post(
                f"http://{cluster.router.http_address}/v1/messages", json=body
            )
        assert (refused.status_code, refused.json()["error"]["message"]) == (400, NO_TOKEN)


async def test_what_is_no_grammar_is_refused_by_name(
    http: openai.AsyncOpenAI, grpc: AsyncClient
) -> None:
    for wrong, field in (
        (StructuredOutputsParams(regex="(a"), "structured_outputs.regex"),
        (StructuredOutputsParams(json={"type": "nothing"}), "structured_outputs.json"),
        (StructuredOutputsParams(grammar="start: missing"), "structured_outputs.grammar"),
        (StructuredOutputsParams(json={"type": "integer", "multipleOf": 9_999_991}), "json"),
    ):
        with pytest.raises(InvalidRequestError, match=field):
            await grpc.generate(PROMPT, SamplingParams(structured_outputs=wrong))
    for wrong, field in (
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"regex": "(a"}, "regex"),
        ({"ebnf": "start: missing"}, "ebnf"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
        ({"json_schema": {"type": "objekt"}}, "json_schema"),
        ({"guided_choice": ["a" * 70_000]}, "guided_choice"),
        (
            {"response_format": {"type": "json_object", "schema": {"type": "objekt"}}},
            "response_format.schema",
        ),
    ):
        with pytest.raises(openai.BadRequestError, match=f"{field}: must be") as refused:
            await http.completions.create(model="", prompt="a", extra_body=wrong)
        assert refused.value.param == field


NO_SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "objekt"}}
NO_TOOL = {"name": "f", "parameters": {"type": "objekt"}}
# What only llguidance refuses.
NOT_READ: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
    {"type": "object", "properties": {"a": {"not": {"type": "null"}}}},
]


def _tool(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "g", "parameters": schema}}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": NO_SCHEMA}},
            "response_format.json_schema.schema",
        ),
        (
            "/v1/chat/completions",
            {"tools": [{"type": "function", "function": NO_TOOL}], "tool_choice": "required"},
            "tools[0].function.parameters",
        ),
        *(
            (
                "/v1/chat/completions",
                {"tools": [*TOOLS, _tool(schema)], "tool_choice": "required"},
                f"tools[{len(TOOLS)}].function.parameters",
            )
            for schema in NOT_READ
        ),
        *(
            (
                "/v1/responses",
                {"tools": [{"type": "function", **_tool(schema)["function"], "strict": True}]},
                "tools[0].parameters",
            )
            for schema in NOT_READ
        ),
        ("/v1/responses", {"text": {"format": NO_SCHEMA}}, "text.format.schema"),
        ("/v1/responses", {"max_output_tokens": -1}, "max_output_tokens"),
        ("/v1/messages", {"output_config": {"format": NO_SCHEMA}}, "output_config.format.schema"),
        (
            "/v1/messages",
            {
                "tools": [{"name": "f", "input_schema": NO_TOOL["parameters"]}],
                "tool_choice": {"type": "any"},
            },
            "tools[0].input_schema",
        ),
    ],
)
async def test_errors_have_the_names_of_the_api(
    cluster: Cluster, path: str, body: dict[str, Any], field: str
) -> None:
    asked = {"model": "", "messages": MESSAGES, "input": "a", "max_tokens": 8, **body}
    del asked["messages" if path == "/v1/responses" else "input"]
    if path == "/v1/responses":
        del asked["max_tokens"]
    async with httpx.AsyncClient(base_url=f"http://{cluster.router.http_address}") as client:
        answer = await client.post(path, json=asked, timeout=60.0)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].startswith(f"{field}: must be"), answer.text
