"""Conversations over gRPC: the request for text that they are, also where their stream breaks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import grpc
import pytest
import pytest_asyncio

from quire import AsyncClient, Client, SamplingParams
from quire.contract.chat import MAX_MESSAGES, ChatInput, ChatMessage
from quire.contract.errors import InvalidRequestError
from quire.contract.inputs import GenerateInput, ResumeInput
from quire.contract.outputs import Event, Started
from quire.rpc import open_channel
from quire.rpc.call_errors import error_from_rpc
from quire.sdk.resume import ResumableStream
from quire.v1 import inference_pb2, inference_pb2_grpc
from quire.wire.chat import chat_input_to_proto
from quire.wire.inference import (
    event_from_proto,
    generate_input_to_proto,
    resume_input_to_proto,
)
from tests.fakes.fake_scheduler import MODEL, FakeScheduler, running_scheduler
from tests.rpc.router_setup import BACKEND, router_for
from tests.rpc.test_resume import completion_of, scattered

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ end }}"
MESSAGES = [{"role": "system", "content": "list"}, {"role": "user", "content": "class 中文 😀"}]
PROMPT = "<system>list<user>class 中文 😀"
PARAMS = SamplingParams(max_tokens=12, seed=5)
TOOL = {"type": "function", "function": {"name": "f"}}


class Routers:
    """Three routers of one cell: two with templates of their own, and one without."""

    def __init__(self, clients: list[AsyncClient], addresses: list[str]) -> None:
        self.clients = clients
        self.addresses = addresses

    async def call(
        self, router: int, request: GenerateInput | ChatInput | ResumeInput
    ) -> AsyncIterator[Event]:
        """Call one by its proto."""
        async with open_channel(self.addresses[router]) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            if isinstance(request, ChatInput):
                call = stub.Chat(chat_input_to_proto(request))
            elif isinstance(request, ResumeInput):
                call = stub.Resume(resume_input_to_proto(request))
            else:
                call = stub.Generate(generate_input_to_proto(request))
            try:
                async for response in call:
                    yield event_from_proto(response)
            except grpc.aio.AioRpcError as error:
                raise error_from_rpc(error) from None
            finally:
                call.cancel()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def routers(tmp_path_factory) -> AsyncIterator[Routers]:
    directory = tmp_path_factory.mktemp("model")
    fake = FakeScheduler(scattered, replace(MODEL, numerics_id="5f7a"))
    async with (
        running_scheduler(fake) as scheduler,
        router_for(directory, (scheduler,), TEMPLATE) as (first, *one),
        router_for(directory, (scheduler,), "{{ strftime_now('%s') }}") as (second, *other),
        router_for(directory, (scheduler,)) as (third, *none),
    ):
        each = (first, second, third)
        await asyncio.gather(*(router.wait_until_serving() for router in each))
        yield Routers(*map(list, zip(one, other, none, strict=True)))


async def test_a_chat_is_the_request_of_its_prompt(routers) -> None:
    client = routers.clients[0]
    plain = await client.generate(PROMPT, PARAMS, include_prompt_token_ids=True)
    chat = await client.chat(MESSAGES, PARAMS)
    assert replace(chat, request_id="") == replace(plain, request_id="")
    assert chat.prompt_token_ids == tuple(BACKEND.encode(PROMPT).ids)
    chat = await client.chat(MESSAGES, PARAMS, chat_template_kwargs={"end": "!"})
    assert chat.token_ids == (await client.generate(PROMPT + "!", PARAMS)).token_ids

    def from_a_thread() -> tuple[int, ...]:
        with Client(routers.addresses[0]) as plain_client:
            return plain_client.chat([ChatMessage("user", "x")], PARAMS).token_ids

    same = await client.generate("<user>x", PARAMS)
    assert await asyncio.to_thread(from_a_thread) == same.token_ids


async def test_cut_anywhere_a_chat_goes_on_where_the_template_is_another(routers) -> None:
    """Its prompt is what was rendered first: what is resumed names no message."""
    request = ChatInput([ChatMessage("user", "中文 😀")], PARAMS, resumable=True)
    whole = completion_of([event async for event in routers.call(0, request)])
    for num_events in range(1, PARAMS.max_tokens + 2):
        stream = ResumableStream(request, 2, 60.0)
        events: list[Event] = []
        async with aclosing(routers.call(0, request)) as first:
            async for event in first:
                assert stream.take(event)
                events.append(event)
                if len(events) == num_events:
                    break
        # Every other time where it still runs, and nothing is computed again.
        router = num_events % 3
        if not stream.is_complete:
            rest = [event async for event in routers.call(router, stream.request)]
            assert isinstance(rest[0], Started)
            assert rest[0].prompt_token_ids == whole.prompt_token_ids
            events += [event for event in rest if stream.take(event)]
        assert stream.is_complete
        assert completion_of(events) == whole, num_events


@pytest.mark.parametrize(
    ("messages", "options", "reason"),
    [
        ([], {}, "messages: at least 1 message, got 0"),
        ([{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1), {}, "messages: must be at most"),
        ([{"content": "x"}], {}, r"messages\[0\].role: must be a text, got none"),
        ([{"role": "user", "content": "x" * 2**20}], {}, "messages: at most 1048576 characters"),
        ([{"role": "user", "content": ""}], {"tool_choice": "f"}, "tool_choice: must be one of"),
        (MESSAGES, {"tool_choice": "required"}, "tools: must be at least 1"),
        (
            MESSAGES,
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice: must name one of the tools, got g",
        ),
        (MESSAGES, {"request_id": "x" * 999}, "request_id: at most"),
        (MESSAGES, {"priority": 101}, "priority: must be in"),
        (MESSAGES, {"model": "other"}, "model"),
    ],
)
async def test_what_cannot_be_rendered_is_refused_by_name(
    routers, messages, options, reason
) -> None:
    with pytest.raises(Exception, match=reason):
        await routers.clients[0].chat(messages, PARAMS, **options)


async def test_without_a_template_there_is_no_chat(routers) -> None:
    with pytest.raises(InvalidRequestError, match=r"messages: .*the model has no chat template"):
        await routers.clients[2].chat(MESSAGES, PARAMS)


async def test_a_message_of_many_parts_is_refused_before_they_are_read(routers) -> None:
    """They would fit a message of the largest size, and be read for seconds."""
    many = inference_pb2.ChatMessage(tool_calls=[inference_pb2.ToolCall()] * 5000)
    async with open_channel(routers.addresses[0]) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Chat(inference_pb2.ChatRequest(messages=[many])):
                pass
    assert caught.value.details() == "tool_calls: must be at most 4096, got 5000"
