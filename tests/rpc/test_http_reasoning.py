"""Reasoning in chats: by both names that clients know, in and out, and hidden where asked for.

The fake model says its prompt again, so that a message of a test is what the assistant says.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.rpc.http_setup import HttpSetup, http_router
from tests.rpc.router_setup import BACKEND

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/chat/completions"
TEMPLATE = "{# </think> #}{{ messages[0].content }}"
TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}{{ m.content or '' }}"
    "{% endfor %}"
)
NAMES = ("reasoning", "reasoning_content")
THOUGHT, ANSWER = "Hm, so", "Yes"
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": f"<think>{THOUGHT}</think>{ANSWER}END"}],
    "max_tokens": 100,
    "stop": ["END"],
    "return_token_ids": True,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpSetup]:
    async with http_router(tmp_path_factory.mktemp("model"), chat_template=TEMPLATE) as made:
        yield made


async def whole_and_deltas(
    setup: HttpSetup, **options: Any
) -> tuple[dict[str, Any], list[dict[str, Any]], list[list[int]]]:
    """The message of an answer; of its stream, what each event adds and the tokens of that."""
    body = {**BODY, **options}
    [choice] = (await setup.post(PATH, body)).json()["choices"]
    *events, done = await setup.events(PATH, body)
    assert done.data == "[DONE]"
    deltas = [event.choice["delta"] for event in events]
    return choice["message"], deltas, [event.choice["token_ids"] for event in events]


def joined(deltas: list[dict[str, Any]], name: str) -> str:
    return "".join(delta.get(name) or "" for delta in deltas)


async def test_reasoning_stands_under_both_names(setup: HttpSetup) -> None:
    message, deltas, _ = await whole_and_deltas(setup)
    shown = dict.fromkeys(NAMES, THOUGHT)
    assert message == {"role": "assistant", "content": ANSWER, **shown}
    for delta in deltas:
        assert delta.get("reasoning") == delta.get("reasoning_content")
    assert joined(deltas, "reasoning") == THOUGHT
    assert joined(deltas, "content") == ANSWER


async def test_reasoning_is_hidden_where_it_is_not_wanted(setup: HttpSetup) -> None:
    _, _, tokens = await whole_and_deltas(setup, include_reasoning=True)
    message, deltas, same = await whole_and_deltas(setup, include_reasoning=False)
    assert message == {"role": "assistant", "content": ANSWER}
    assert not any(delta.keys() & set(NAMES) for delta in deltas)
    assert joined(deltas, "content") == ANSWER
    assert same == tokens, "an event for each token, hidden or not"


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ({"reasoning": "b"}, "b"),
        ({"reasoning_content": "b"}, "b"),
        (dict.fromkeys(NAMES, "b"), "b"),
        ({"reasoning": "b", "reasoning_content": None}, "b"),
        ({"reasoning": None, "reasoning_content": "b"}, "b"),
        (dict.fromkeys(NAMES), ""),
    ],
)
async def test_what_an_assistant_thought_is_read_by_either_name(
    tmp_path: Path, told: dict[str, str | None], read: str
) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "c", **told},
        {"role": "user", "content": "d"},
    ]
    body = {"messages": messages, "max_tokens": 1, "return_token_ids": True}
    async with http_router(tmp_path, chat_template=TURNS) as setup:
        answer = await setup.post(PATH, body)
    assert answer.status_code == 200, answer.text
    prompt = f"<user>a<assistant>{read}c<user>d"
    assert answer.json()["prompt_token_ids"] == BACKEND.encode(prompt).ids


async def test_a_thought_that_is_no_text_is_refused(setup: HttpSetup) -> None:
    messages = [{"role": "assistant", "content": "c", "reasoning": ["b"]}]
    response = await setup.post(PATH, {**BODY, "messages": messages})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("messages[0].reasoning")
