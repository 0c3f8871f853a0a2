"""Streams that pause longer than a heartbeat, read by stock clients: no heartbeat is an event."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio

from tests.rpc.http_setup import HttpSetup, http_router, stepping_after

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
PROMPT = "class 中文 😀 list of methods"
NUM_TOKENS = 6
MESSAGES: Any = [{"role": "user", "content": PROMPT}]
CHAT: dict[str, Any] = {"model": "fake", "messages": MESSAGES, "max_tokens": NUM_TOKENS}
COMPLETION: dict[str, Any] = {"model": "fake", "prompt": PROMPT, "max_tokens": NUM_TOKENS}
RESPONSE: dict[str, Any] = {"model": "fake", "input": MESSAGES, "max_output_tokens": NUM_TOKENS}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory) -> AsyncIterator[HttpSetup]:
    directory = tmp_path_factory.mktemp("model")
    async with http_router(directory, chat_template=TEMPLATE, sse_keep_alive_interval=0.05) as made:
        yield made


def openai_sync(url: str, kind: str) -> list[Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        match kind:
            case "chat":
                return list(client.chat.completions.create(**CHAT, stream=True))
            case "completions":
                return list(client.completions.create(**COMPLETION, stream=True))
            case _:
                return list(client.responses.create(**RESPONSE, stream=True))


async def openai_async(url: str, kind: str) -> list[Any]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        match kind:
            case "chat":
                stream: Any = await client.chat.completions.create(**CHAT, stream=True)
            case "completions":
                stream = await client.completions.create(**COMPLETION, stream=True)
            case _:
                stream = await client.responses.create(**RESPONSE, stream=True)
        return [each async for each in stream]


def anthropic_sync(url: str, kind: str) -> list[Any]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        return list(client.messages.create(**CHAT, stream=True))


async def anthropic_async(url: str, kind: str) -> list[Any]:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        return [each async for each in await client.messages.create(**CHAT, stream=True)]


def in_thread(read: Callable[[str, str], list[Any]]) -> Callable[[str, str], Awaitable[list[Any]]]:
    return lambda url, kind: asyncio.to_thread(read, url, kind)


CLIENTS = {
    "openai, sync": in_thread(openai_sync),
    "openai, async": openai_async,
    "anthropic, sync": in_thread(anthropic_sync),
    "anthropic, async": anthropic_async,
}


def without_own(event: Any) -> Any:
    """What an event shows, but for what each answer has for itself."""
    own = ("id", "item_id", "created", "created_at")
    match event:
        case dict():
            return {name: without_own(event[name]) for name in event if name not in own}
        case list():
            return list(map(without_own, event))
    return event


@pytest.mark.parametrize(
    ("client", "kind"),
    [
        *((f"openai, {way}", api) for way in ("sync", "async") for api in ("chat", "completions")),
        *((f"openai, {way}", "responses") for way in ("sync", "async")),
        *((f"anthropic, {way}", "messages") for way in ("sync", "async")),
    ],
)
async def test_a_stock_client_sees_no_heartbeats(setup, client, kind) -> None:
    read, url = CLIENTS[client], f"http://{setup.router.http_address}"
    at_once = await read(url, kind)
    async with stepping_after(setup, 2):
        paused = await read(url, kind)
    assert len(at_once) > NUM_TOKENS
    assert [without_own(each.model_dump()) for each in paused] == [
        without_own(each.model_dump()) for each in at_once
    ]


PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/responses": RESPONSE,
    "/v1/messages": CHAT,
}


@pytest.mark.parametrize("path", PATHS)
async def test_no_blank_line_but_behind_an_event_with_data(setup, path) -> None:
    async with stepping_after(setup, 2):
        response = await setup.post(path, {**PATHS[path], "stream": True})
    *blocks, rest = response.text.split("\n\n")
    assert rest == ""
    assert all("\ndata: {" in f"\n{block}" or block == "data: [DONE]" for block in blocks)
    assert response.text.count(": keep-alive\n") + response.text.count("event: ping\n") >= 2
