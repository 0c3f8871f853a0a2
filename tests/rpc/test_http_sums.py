"""A stream's events add up to the whole answer, field by field: requests and cuts by chance.

The fake model says its prompt again, so that a message of a test is what the assistant says.
"""

import json
import os
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import pytest_asyncio

from router.text.detokenize import DetokenizerFactory
from tests.fakes.fake_scheduler import MODEL, FakeScheduler
from tests.rpc.http_setup import HttpSetup, http_router
from tests.rpc.router_setup import BACKEND
from tests.rpc.stream_sums import chat_sum, completion_sum, message_sum, response_sum

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEED = int(os.environ.get("SEED", random.randrange(2**32)))
NUM_REQUESTS = 40  # of each API
TEMPLATE = "{# <tool_call> </think> #}{{ messages[0].content }}"
SCHEMA = {"type": "object", "properties": {"x": {}}}
WORDS = (
    *(
        "list",
        " sort",
        "中",
        "文字",
        "😀",
        "é",
        "\n",
        "\t",
        "<",
        "</",
        '"',
        "\\",
        "{",
        "}",
        "<tool",
    ),
    *("\u2028", "\u2029", "\u0085", "\u00a0", "\ufffd", "null", " E", "EN", "0.5", "data: ", ":"),
)
SUMS = {
    "/v1/chat/completions": chat_sum,
    "/v1/completions": completion_sum,
    "/v1/responses": response_sum,
    "/v1/messages": message_sum,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory) -> AsyncIterator[HttpSetup]:
    directory = tmp_path_factory.mktemp("model")
    fake = FakeScheduler(model=replace(MODEL, max_model_len=4096))
    async with http_router(directory, fake, chat_template=TEMPLATE) as made:
        yield made


@pytest.fixture(autouse=True)
def shown_seed() -> None:
    """Print the seed, which any failure shows."""
    print(f"SEED={SEED}")


def words(chance: random.Random, most: int = 6) -> str:
    return "".join(chance.choices(WORDS, k=chance.randrange(most)))


def answer_text(chance: random.Random) -> str:
    """What the assistant says: perhaps reasoning, text, and calls."""
    text = words(chance)
    if chance.random() < 0.5:
        text = f"<think>{words(chance)}</think>{text}"
    for _ in range(chance.randrange(3)):
        arguments = {} if chance.random() < 0.2 else {"x": words(chance), "y": [1, None]}
        call = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=chance.random() < 0.5)
        text += f"<tool_call>{call}</tool_call>{words(chance, 3)}"
    return text or "x"


def body_of(path: str, chance: random.Random) -> dict[str, Any]:
    """A request whose answer is cut by a stop string, or anywhere by its number of tokens."""
    text = answer_text(chance)
    num_tokens = len(BACKEND.encode(f"{text}END").ids)
    cut = chance.choice([num_tokens + 3, num_tokens, chance.randrange(1, num_tokens + 1)])
    stop = chance.choice([["END"], ["END", "st"], ["文字", "never"]])
    has_tools, has_logprobs = chance.random() < 0.7, chance.random() < 0.5
    extras: dict[str, Any] = {"return_token_ids": True, "seed": 5}
    if chance.random() < 0.2:
        extras["include_stop_str_in_output"] = True
    messages = [{"role": "user", "content": f"{text}END"}]
    tool = {"name": "f", "parameters": SCHEMA}
    match path:
        case "/v1/chat/completions":
            tools = [{"type": "function", "function": tool}] if has_tools else []
            logprobs = {"logprobs": True, "top_logprobs": 2} if has_logprobs else {}
            own = {"messages": messages, "max_tokens": cut, "tools": tools, "stop": stop}
            return {**own, **extras, **logprobs}
        case "/v1/completions":
            prompts = [f"{text}END", f"{answer_text(chance)}END"][: chance.choice([1, 2])]
            own = {"prompt": prompts, "max_tokens": cut, "stop": stop}
            own |= {"logprobs": 2} if has_logprobs else {"echo": chance.random() < 0.5}
            return {**own, **extras}
        case "/v1/responses":
            tools = [{"type": "function", **tool}] if has_tools else []
            include = ["message.output_text.logprobs"] if has_logprobs else []
            del extras["return_token_ids"]  # events have them unasked
            own = {"input": messages, "max_output_tokens": cut, "tools": tools, "stop": stop}
            return {**own, **extras, "include": include, "top_logprobs": 1}
        case _:
            tools = [{"name": "f", "input_schema": SCHEMA}] if has_tools else []
            own = {"messages": messages, "max_tokens": cut, "tools": tools}
            return {**own, **extras, "stop_sequences": stop}


def without_own(value: Any) -> Any:
    """What an answer shows, but for when it was made and what an object is called."""
    own = ("created", "created_at", "completed_at", "object")
    return {name: value[name] for name in value if name not in own}


@pytest.mark.parametrize("path", SUMS)
async def test_events_add_up_to_the_whole_answer(setup, path) -> None:
    chance = random.Random(f"{SEED} {path}")
    for number in range(NUM_REQUESTS):
        body = body_of(path, chance)
        note = f"SEED={SEED}, request {number}: {body}"
        same = {"x-request-id": f"{number}"}
        response = await setup.post(path, body, **same)
        assert response.status_code == 200, (note, response.text)
        options = {}
        if path in ("/v1/chat/completions", "/v1/completions"):
            options = {"stream_options": {"include_usage": True}}
        events = await setup.events(path, {**body, **options}, **same)
        added = SUMS[path](events)
        assert without_own(added) == without_own(response.json()), note


async def test_bytes_of_tokens_are_the_text(setup) -> None:
    chance = random.Random(f"{SEED} bytes")
    for number in range(NUM_REQUESTS):
        # An answer that is cut within what might be <think> has tokens, but no text.
        text = f"x{words(chance, 12)}"
        num_tokens = chance.randrange(1, 40)
        body = {"max_tokens": num_tokens, "logprobs": True, "top_logprobs": 2}
        chat = {**body, "messages": [{"role": "user", "content": text}]}
        answer = (await setup.post("/v1/chat/completions", chat)).json()["choices"][0]
        response = {
            **{"input": text, "max_output_tokens": num_tokens, "top_logprobs": 2},
            "include": ["message.output_text.logprobs"],
        }
        output = (await setup.post("/v1/responses", response)).json()["output"]
        [part] = output[0]["content"]
        for shown, entries in (
            (answer["message"]["content"], answer["logprobs"]["content"]),
            (part["text"], part["logprobs"]),
        ):
            whole = b"".join(bytes(entry["bytes"]) for entry in entries)
            note = f"SEED={SEED}, request {number}: {text!r}, {num_tokens} tokens"
            assert whole.decode(errors="replace") == shown, note
            assert len(entries) == num_tokens, note


async def test_a_token_begins_where_its_offset_says(setup) -> None:
    """Also where a stop string might begin, and its text is held back."""
    token_bytes = DetokenizerFactory(BACKEND).token_bytes
    chance = random.Random(f"{SEED} offsets")
    for number in range(NUM_REQUESTS):
        body = {
            **{"prompt": words(chance, 12) or "x", "max_tokens": chance.randrange(1, 40)},
            **{"logprobs": 1, "return_token_ids": True, "stop": ["中文字", " sort never"]},
        }
        [choice] = (await setup.post("/v1/completions", body)).json()["choices"]
        ends = accumulate(map(token_bytes, choice["token_ids"]), initial=b"")
        begins = [len(end.decode(errors="ignore")) for end in ends][:-1]
        note = f"SEED={SEED}, request {number}: {body}"
        assert choice["logprobs"]["text_offset"] == begins, note
