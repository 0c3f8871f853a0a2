"""A router with an HTTP port, between a fake scheduler and clients of both its APIs."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.http.call import HttpCall
from router.http.event_stream import KEEP_ALIVE
from router.http.messages.answers import PING
from tests.fakes.fake_scheduler import FakeScheduler
from tests.rpc.router_setup import Setup, running_router

# A conversation of one message is a prompt of its text.
TEXT_TEMPLATE = "{{ messages[0].content }}"


def bodies(text: str, num_tokens: int) -> dict[str, dict[str, Any]]:
    """Requests for so many tokens after a text, by their path: of each API that gives tokens."""
    messages = [{"role": "user", "content": text}]
    return {
        "/v1/completions": {"prompt": text, "max_tokens": num_tokens},
        "/v1/chat/completions": {"messages": messages, "max_tokens": num_tokens},
        "/v1/messages": {"messages": messages, "max_tokens": num_tokens},
        "/v1/responses": {"input": text, "max_output_tokens": num_tokens},
    }


@dataclass
class HttpSetup(Setup):
    """What a test talks to."""

    http: httpx.AsyncClient

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return await self.http.post(path, json=body, headers=headers)

    async def events(self, path: str, body: Any, **headers: str) -> list["Sent"]:
        """Return the events of a stream, read to its end."""
        async with self._stream(path, body, headers) as response:
            assert response.status_code == 200, await response.aread()
            return [event async for event in events_of(response)]

    async def late_events(self, path: str, body: Any, **headers: str) -> list["Sent"]:
        """Return the events of a stream that begins before its deadline: tries ever longer ones."""
        timeout_s = 0.3
        while True:
            late = {**headers, "x-request-timeout-s": str(timeout_s)}
            async with self._stream(path, body, late) as response:
                if response.status_code == 200:
                    return [event async for event in events_of(response)]
                assert response.status_code == 504, await response.aread()
            timeout_s *= 2

    def _stream(
        self, path: str, body: Any, headers: dict[str, str]
    ) -> AbstractAsyncContextManager[httpx.Response]:
        return self.http.stream("POST", path, json={**body, "stream": True}, headers=headers)


@dataclass
class Sent:
    """An event of a stream, or a comment."""

    id: str = ""
    event: str = ""
    data: Any = None
    comment: str = ""

    @property
    def choice(self) -> dict[str, Any]:
        [choice] = self.data["choices"]
        return choice


async def events_of(response: httpx.Response) -> AsyncIterator[Sent]:
    """Yield events and comments of a response as they come; only an event with data may end."""
    sent = Sent()
    async for line in response.aiter_lines():
        if not line:
            assert sent.data is not None, sent
            yield sent
            sent = Sent()
        elif line.startswith(":"):
            yield Sent(comment=line[1:].strip())
        else:
            name, _, value = line.partition(": ")
            is_json = name == "data" and value != "[DONE]"
            setattr(sent, name, json.loads(value) if is_json else value)


@asynccontextmanager
async def http_router(
    directory: Path, fake: FakeScheduler | None = None, **settings: object
) -> AsyncIterator[HttpSetup]:
    """A router with both ports, connected to a fake scheduler, and clients of both."""
    async with running_router(directory, fake, http_port=0, **settings) as setup:
        base_url = f"http://{setup.router.http_address}"
        async with httpx.AsyncClient(base_url=base_url, timeout=60.0) as http:
            yield HttpSetup(**vars(setup), http=http)


@asynccontextmanager
async def stepping_after(setup: HttpSetup, num_heartbeats: int) -> AsyncIterator[None]:
    """Hold each step of the fake until so many more heartbeats have gone out on streams."""
    num_sent = 0
    changed = asyncio.Condition()
    write = HttpCall.write

    async def counted(call: HttpCall, content: bytes, is_last: bool = False) -> None:
        nonlocal num_sent
        await write(call, content, is_last)
        if content in (KEEP_ALIVE, PING):
            async with changed:
                num_sent += 1
                changed.notify_all()

    async def step() -> None:
        while True:
            due = num_sent + num_heartbeats
            async with changed:
                await changed.wait_for(lambda due=due: num_sent >= due)
            await setup.fake.step()

    setup.fake.hold()
    stepping = asyncio.create_task(step())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HttpCall, "write", counted)
        try:
            yield
        finally:
            stepping.cancel()
            await setup.fake.release()
