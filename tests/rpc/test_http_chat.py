"""/v1/chat/completions of a real router, asked by OpenAI's own client: gRPC's Chat in its shape."""

from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from quire import SamplingParams
from tests.rpc.http_setup import HttpSetup, events_of, http_router
from tests.rpc.router_setup import BACKEND

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/chat/completions"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{{ mood }}{{ enable_thinking }}"
)
MESSAGES = [
    {"role": "system", "content": "list"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "class"}, {"type": "text", "text": "中文"}],
    },
]
PROMPT = "<system>list<user>class\n中文<assistant>"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def tool_of(parameters: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": "g", "parameters": parameters}}


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
BODY = {"messages": MESSAGES, "max_tokens": 12}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory) -> AsyncIterator[HttpSetup]:
    directory = tmp_path_factory.mktemp("model")
    async with http_router(directory, chat_template=TEMPLATE) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(setup) -> AsyncIterator[AsyncOpenAI]:
    base_url = f"http://{setup.router.http_address}/v1"
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as made:
        yield made


async def test_a_chat_is_that_of_grpc_and_the_completion_of_its_prompt(setup, client) -> None:
    params = SamplingParams(max_tokens=12)
    same = await setup.client.chat(MESSAGES, params)
    answer = await client.chat.completions.create(
        model="fake",
        messages=MESSAGES,
        max_completion_tokens=12,
        extra_body={"return_token_ids": True},
    )
    [choice] = answer.choices
    assert choice.message.content == same.text
    assert choice.message.role == "assistant"
    assert tuple(choice.model_extra["token_ids"]) == same.token_ids
    assert choice.finish_reason == "length"
    prompt_ids = BACKEND.encode(PROMPT).ids
    assert answer.model_extra["prompt_token_ids"] == prompt_ids
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt_ids), 12)
    plain = await client.completions.create(model="fake", prompt=PROMPT, max_tokens=12)
    assert plain.choices[0].text == same.text


async def test_each_token_is_an_event_numbered_by_the_tokens(setup, client) -> None:
    whole = (await setup.client.chat(MESSAGES, SamplingParams(max_tokens=12))).text
    stream = await client.chat.completions.create(
        model="fake",
        messages=MESSAGES,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    first, *chunks, end, usage = [chunk async for chunk in stream]
    assert first.choices[0].delta.role == "assistant"
    assert "".join(each.choices[0].delta.content for each in chunks) == whole
    assert [len(each.choices[0].model_extra["token_ids"]) for each in chunks] == [1] * 12
    assert end.choices[0].finish_reason == "length"
    assert usage.usage.completion_tokens == 12
    *events, done = await setup.events(PATH, BODY)
    assert [event.id for event in events] == [str(number) for number in range(1, 15)]
    assert done.data == "[DONE]"


async def test_the_old_role_of_a_result_goes_to_the_template(setup) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "function", "name": "f", "content": "b"}]
    answer = await setup.post(PATH, {**BODY, "messages": said, "return_token_ids": True})
    assert answer.json()["prompt_token_ids"] == BACKEND.encode("<user>a<function>b<assistant>").ids


@pytest.mark.parametrize("resumable", [True, False])
async def test_a_stream_that_broke_goes_on_after_any_event(setup, resumable) -> None:
    body = {**BODY, "seed": 4, "stream": True, "resumable": resumable}
    whole = await setup.events(PATH, body)
    contents = [(event.id, event.data["choices"]) for event in whole[:-1]]
    for num in range(1, len(contents)):
        async with setup.http.stream("POST", PATH, json=body) as response:
            events = events_of(response)
            first = [await anext(events) for _ in range(num)]
        resume = {"id": first[0].data["id"], "seed": 4, "starting_after": num}
        resume["created"] = first[0].data["created"]
        rest = await setup.events(PATH, {**body, "resume": resume})
        assert [(each.id, each.data["choices"]) for each in rest[:-1]] == contents[num:]


async def test_the_template_gets_tools_and_variables(setup) -> None:
    tools = '[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]'
    for body, prompt in (
        ({"tools": [TOOL]}, f"{PROMPT[:-11]}{tools}<assistant>"),
        ({"tools": [TOOL], "tool_choice": "none"}, PROMPT),
        ({"chat_template_kwargs": {"mood": "!"}}, PROMPT + "!"),
        ({"thinking": {"type": "disabled"}}, f"{PROMPT}False"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, f"{PROMPT}True"),
        ({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": 1}},
         f"{PROMPT}1"),
        ({"thinking": {"type": "adaptive"}}, PROMPT),
        ({"thinking": None}, PROMPT),
        ({"add_generation_prompt": False}, PROMPT[:-11]),
        ({"continue_final_message": True, "add_generation_prompt": False}, PROMPT[:-11]),
    ):  # fmt: skip
        answer = await setup.post(PATH, {**BODY, **body, "return_token_ids": True})
        assert answer.json()["prompt_token_ids"] == BACKEND.encode(prompt).ids
        tokens = await setup.post("/tokenize", {**BODY, **body})
        assert tokens.json()["tokens"] == BACKEND.encode(prompt).ids


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"role": "u", "content": [IMAGE]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "u", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": ""}}]},
         "messages[0].function_call"),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
        ({"messages": [{"role": "assistant", "refusal": 5}]}, "messages[0].refusal"),
        ({"messages": [{"role": "u", "name": 5}]}, "messages[0].name"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"thinking": True}, "thinking"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "name": 5}]}, "tools[0].name"),
        *(({"tools": [TOOL, tool_of(wrong)], "tool_choice": "required"},
           "tools[1].function.parameters")
          for wrong in (5, "zzz", {"type": "array"}, "[" * 9, '"a"')),
        ({"tool_choice": "required"}, "tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"continue_final_message": True, "add_generation_prompt": True},
         "add_generation_prompt"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"functions": [{}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"temperature": -1}, "temperature"),
        ({"resume": {"id": "x", "seed": 1}}, "resume"),
        ({"stream": True, "resume": {"id": "x", "seed": 1, "created": 10**18}}, "resume.created"),
    ],
)  # fmt: skip
async def test_a_bad_field_is_named(setup, client, body, param) -> None:
    merged = {**BODY, **body}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(
            model="fake", messages=merged.pop("messages"), extra_body=merged
        )
    assert caught.value.param == param


async def test_a_content_that_is_none_is_told_what_one_is(setup) -> None:
    for path, part in (("/v1/chat/completions", "a list"), ("/v1/messages", "an array of blocks")):
        body = {**BODY, "messages": [{"role": "user", "content": 5}], "max_tokens": 3}
        error = (await setup.post(path, body)).json()["error"]
        assert error["message"].startswith(f"messages[0].content: must be a string or {part}, got")


async def test_an_end_is_not_ignored_where_a_call_is_forced(setup) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {**BODY, "tools": tools, "tool_choice": "required", "ignore_eos": True}
    error = (await setup.post("/v1/chat/completions", body)).json()["error"]
    assert error["param"] == "ignore_eos"
    assert error["message"] == "ignore_eos: must be false where a call is forced"
