"""A call that breaks is none to act upon: why the answer ended says no word of it.

The fake model says its prompt again, so that a message of a test is what the assistant says.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.rpc.http_setup import HttpSetup, http_router

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
TEMPLATE = "{# <tool_call> #}{{ messages[0].content }}"
CALL = '<tool_call>{"name": "f", "arguments": {"x": [1]}}</tool_call>'
BROKEN = CALL.replace("[1]", "[1")
CUT = CALL[:-16]  # within its arguments
SCHEMA = {"type": "object"}
TOOLS = {
    CHAT: [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
    MESSAGES: [{"name": "f", "input_schema": SCHEMA}],
}
CASES = {
    "a whole call": (CALL, "tool_calls", "tool_use"),
    "two of them": (CALL + CALL, "tool_calls", "tool_use"),
    "a broken call": (BROKEN, "stop", "end_turn"),
    "text and a broken call": (f"Yes{BROKEN}", "stop", "end_turn"),
    "a call that the text ends in": (CUT, "stop", "end_turn"),
    "a broken call behind a whole one": (CALL + BROKEN, "stop", "end_turn"),
    "a whole call behind a broken one": (BROKEN + CALL, "stop", "end_turn"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpSetup]:
    async with http_router(tmp_path_factory.mktemp("model"), chat_template=TEMPLATE) as made:
        yield made


def body_of(path: str, text: str, **options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": 120, "tools": TOOLS[path], **options}


async def finish_reasons(setup: HttpSetup, body: dict[str, Any]) -> list[str | None]:
    """Why a chat ended, whole and streamed."""
    [choice] = (await setup.post(CHAT, body)).json()["choices"]
    *others, last = [each.choice["finish_reason"] for each in (await setup.events(CHAT, body))[:-1]]
    assert set(others) == {None}
    return [choice["finish_reason"], last]


async def stop_reasons(setup: HttpSetup, body: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Why a message ended, and the stop string that ended it, whole and streamed."""
    whole = (await setup.post(MESSAGES, body)).json()
    events = await setup.events(MESSAGES, body)
    [end] = [each.data["delta"] for each in events if each.event == "message_delta"]
    return [(each["stop_reason"], each["stop_sequence"]) for each in (whole, end)]


@pytest.mark.parametrize("case", CASES)
async def test_an_answer_calls_only_where_no_call_of_it_is_broken(
    setup: HttpSetup, case: str
) -> None:
    text, finish_reason, stop_reason = CASES[case]
    ended = f"{text}</s>"  # by the model itself
    assert await finish_reasons(setup, body_of(CHAT, ended)) == [finish_reason] * 2
    assert await stop_reasons(setup, body_of(MESSAGES, ended)) == [(stop_reason, None)] * 2


async def test_a_stop_string_behind_a_broken_call_is_told(setup: HttpSetup) -> None:
    text = f"{BROKEN}END"
    assert await finish_reasons(setup, body_of(CHAT, text, stop=["END"])) == ["stop"] * 2
    found = await stop_reasons(setup, body_of(MESSAGES, text, stop_sequences=["END"]))
    assert found == [("stop_sequence", "END")] * 2


async def test_a_broken_call_that_is_left_out_breaks_nothing(setup: HttpSetup) -> None:
    """Where one call is wanted, the first is reported, and the second, which breaks, is not."""
    text = f"{CALL}{BROKEN}</s>"
    chat = body_of(CHAT, text, parallel_tool_calls=False)
    assert await finish_reasons(setup, chat) == ["tool_calls"] * 2
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = body_of(MESSAGES, text, tool_choice=choice)
    assert await stop_reasons(setup, message) == [("tool_use", None)] * 2
