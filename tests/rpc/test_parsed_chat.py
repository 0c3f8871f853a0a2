"""What chats with parse_output report of their text: the same wherever their stream breaks."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import pytest
import pytest_asyncio

from quire import Client, SamplingParams
from quire.contract.chat import ChatInput, ChatMessage, Tool
from quire.contract.outputs import Completion, Event
from quire.sdk.collect import Collector
from quire.sdk.resume import ResumableStream
from tests.fakes.fake_scheduler import MODEL, FakeScheduler, running_scheduler
from tests.rpc.router_setup import BACKEND, router_for
from tests.rpc.test_chat import Routers

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEMPLATE = "{# <tool_call> </think> #}{{ messages[0].content }}"
CALL = '<tool_call>{"name": "f", "arguments": {"x": "中"}}</tool_call>'
TEXT = f"<think>Hm</think>Yes 😀{CALL}\n<tool_ca"
# The fake repeats its prompt: once, and is cut within the second call.
PARAMS = SamplingParams(max_tokens=len(BACKEND.encode(TEXT).ids), seed=5)
REQUEST = ChatInput(
    [ChatMessage("user", TEXT)], PARAMS, (Tool("f"),), parse_output=True, resumable=True
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def routers(tmp_path_factory) -> AsyncIterator[Routers]:
    """Two of one cell, of which the other would make another prompt."""
    directory = tmp_path_factory.mktemp("model")
    fake = FakeScheduler(model=replace(MODEL, numerics_id="5f7a", max_model_len=512))
    async with (
        running_scheduler(fake) as scheduler,
        router_for(directory, (scheduler,), TEMPLATE) as (first, *one),
        router_for(directory, (scheduler,), TEMPLATE + "!") as (second, *other),
    ):
        await asyncio.gather(*(router.wait_until_serving() for router in (first, second)))
        yield Routers(*map(list, zip(one, other, strict=True)))


def completions_of(events: list[Event]) -> list[Completion]:
    collector = Collector(is_parsed=True)
    for event in events:
        collector.add(event)
    return collector.completions()


async def test_a_completion_says_what_it_means(routers) -> None:
    client = routers.clients[0]
    options = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    messages = [{"role": "user", "content": TEXT}]
    done = await client.chat(messages, PARAMS, **options, parse_output=True)
    assert (done.reasoning, done.content) == ("Hm", "Yes 😀")
    [call] = done.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("f", {"x": "中"})
    assert done.text == TEXT
    plain = await client.chat(messages, PARAMS, **options)
    assert (plain.content, plain.reasoning, plain.tool_calls) == (None, "", ())
    assert (plain.text, plain.token_ids) == (done.text, done.token_ids)

    def from_a_thread() -> Completion:
        with Client(routers.addresses[0]) as other:
            return other.chat(messages, PARAMS, **options, parse_output=True)

    same = await asyncio.to_thread(from_a_thread)
    assert (same.content, same.reasoning) == (done.content, done.reasoning)
    none = await client.chat(messages, PARAMS, **options, parse_output=True, tool_choice="none")
    assert (none.content, none.tool_calls) == (TEXT.removeprefix("<think>Hm</think>"), ())


async def test_cut_anywhere_it_goes_on_to_mean_the_same(routers) -> None:
    """At the router that has it, which remembers, and at one that has never seen it."""
    request = replace(REQUEST, request_id="mine")
    whole = [event async for event in routers.call(0, request)]
    for num_events in range(1, len(whole) + 1, 3):
        stream = ResumableStream(request, 2, 60.0)
        events: list[Event] = []
        async with aclosing(routers.call(0, request)) as first:
            async for event in first:
                assert stream.take(event)
                events.append(event)
                if len(events) == num_events:
                    break
        if not stream.is_complete:
            router = num_events % 2
            rest = [event async for event in routers.call(router, stream.request)]
            events += [event for event in rest if stream.take(event)]
            await routers.clients[0].abort("mine")
        assert completions_of(events) == completions_of(whole), num_events
    for done in completions_of(whole):
        assert (done.reasoning, done.content) == ("Hm", "Yes 😀")
        assert [call.name for call in done.tool_calls] == ["f"]
