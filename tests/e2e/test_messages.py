"""Anthropic's stock client and a real cluster: text, forced calls, and streams that go on."""

import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx2
import pytest

from launch.cluster.supervisor import Cluster
from quire import AsyncClient, SamplingParams
from tests.e2e.conftest import SharedClusters
from tests.e2e.router_kills import kill_in_time
from tests.rpc.http_setup import Sent, events_of

MESSAGES = [{"role": "user", "content": "What does list.sort do?"}]
WORDS = "([a-z]{2,9} ){60}"
SCHEMA = {
    "type": "object",
    "properties": {"words": {"type": "string", "pattern": f"^{WORDS}$"}},
    "required": ["words"],
    "additionalProperties": False,
}
TOOLS = [{"name": name, "input_schema": SCHEMA} for name in ("sort", "reverse")]
CALL = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": {"type": "any"}, "max_tokens": 500}


@pytest.fixture
def cluster(shared_clusters: SharedClusters) -> Cluster:
    return shared_clusters.get(port=0)


@pytest.fixture
async def http(cluster: Cluster) -> AsyncIterator[anthropic.AsyncAnthropic]:
    base_url = f"http://{cluster.router.http_address}"
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


async def test_a_message_is_what_grpc_answers(
    http: anthropic.AsyncAnthropic, cluster: Cluster
) -> None:
    params = SamplingParams(max_tokens=20, temperature=0.8, top_k=40, seed=7)
    extras = {"temperature": 0.8, "top_k": 40, "seed": 7}
    asked: dict[str, Any] = {"model": "", "messages": MESSAGES, "max_tokens": 20}
    async with AsyncClient(cluster.router.address) as grpc:
        same = await grpc.chat(MESSAGES, params)
    message = await http.messages.create(**asked, extra_body=extras)
    assert [block.text for block in message.content] == [same.text]
    async with http.messages.stream(**asked, extra_body=extras) as stream:
        assert await stream.get_final_text() == same.text
    count = await http.messages.count_tokens(model="", messages=MESSAGES)
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count.input_tokens
    assert count.input_tokens == same.num_prompt_tokens


ONE = {"type": "any", "disable_parallel_tool_use": True}


@pytest.mark.parametrize("choice", [ONE, {"type": "tool", "name": "reverse"}])
async def test_a_forced_call_obeys_its_schema(
    http: anthropic.AsyncAnthropic, choice: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"model": "", **CALL, "tool_choice": choice, "extra_body": {"seed": 3}}
    message = await http.messages.create(**asked)
    calls = [block for block in message.content if block.type == "tool_use"]
    assert message.stop_reason == "tool_use"
    for call in calls:
        assert call.name in (choice.get("name", "sort"), "reverse")
        assert re.fullmatch(WORDS, call.input["words"])
    async with http.messages.stream(**asked) as stream:
        streamed = await stream.get_final_message()
    assert [block.input for block in streamed.content if block.type == "tool_use"] == [
        call.input for call in calls
    ]


async def test_an_answer_obeys_its_format(http: anthropic.AsyncAnthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"size": {"enum": [1, 20]}},
        "required": ["size"],
        "additionalProperties": False,
    }
    message = await http.messages.create(
        model="",
        messages=MESSAGES,
        max_tokens=100,
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    # Any blanks may stand between its parts.
    assert json.loads(message.content[0].text) in ({"size": 1}, {"size": 20})


async def test_a_router_killed_in_mid_call_costs_no_event(
    http: anthropic.AsyncAnthropic, cluster: Cluster
) -> None:
    patient = http.with_options(max_retries=30)  # until the next router listens at the same port
    await read(patient, {"seed": 4})  # usage counts the same cached tokens from here on
    await kill_in_time(lambda number: calls_of_a_killed_router(patient, cluster, 5 + number))


async def calls_of_a_killed_router(
    patient: anthropic.AsyncAnthropic, cluster: Cluster, seed: int
) -> int:
    whole = [shown(event) for event in await read(patient, {"seed": seed})]
    extras: dict[str, Any] = {"seed": seed}
    events: list[Sent] = []
    num_calls = 0
    while not events or events[-1].event != "message_stop":
        num_calls += 1
        if events:
            message = events[0].data["message"]
            extras["resume"] = {
                "id": message["id"],
                "seed": message["seed"],
                "created": message["created"],
                "starting_after": int(events[-1].id),
                "system_fingerprint": message["system_fingerprint"],
            }
        with suppress(httpx2.HTTPError, anthropic.APIConnectionError):
            await read(patient, extras, events, None if num_calls > 1 else cluster.router.pid)
    assert [shown(event) for event in events] == whole
    return num_calls


async def read(
    http: anthropic.AsyncAnthropic,
    extras: dict[str, Any],
    events: list[Sent] | None = None,
    kill: int | None = None,
) -> list[Sent]:
    """Add the numbered events of a stream; kill a process after some of them."""
    events = [] if events is None else events
    async with http.messages.with_streaming_response.create(
        model="", **CALL, stream=True, extra_body=extras
    ) as response:
        async for event in events_of(SimpleNamespace(aiter_lines=response.iter_lines)):
            events += [event] if event.id else []
            if len(events) == 30 and kill is not None:
                os.kill(kill, signal.SIGKILL)
    return events


def shown(event: Sent) -> tuple[str, Any]:
    """What an event shows, but for the ids of its request."""
    data = {name: value for name, value in event.data.items() if name != "message"}
    if "content_block" in data:
        data["content_block"] = {**data["content_block"], "id": ""}
    return event.id, data
