"""/v1/responses of a real router, asked by OpenAI's own client, and where its streams break."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from quire import SamplingParams
from tests.rpc.http_setup import HttpSetup, Sent, events_of, http_router

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/responses"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}[{{ call.function | tojson }}]{% endfor %}{% endfor %}"
)
NUM_TOKENS = 7
BODY = {"input": "class 中文 😀", "instructions": "list", "max_output_tokens": NUM_TOKENS}
PROMPT = "<system>list<user>class 中文 😀"
BEFORE = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
]
AFTER = [
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.incomplete",
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory) -> AsyncIterator[HttpSetup]:
    directory = tmp_path_factory.mktemp("model")
    async with http_router(directory, chat_template=TEMPLATE, grace_time_s=3600.0) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(setup) -> AsyncIterator[AsyncOpenAI]:
    base_url = f"http://{setup.router.http_address}/v1"
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as made:
        yield made


async def test_a_response_is_the_completion_of_its_prompt(setup, client) -> None:
    same = await setup.client.generate(PROMPT, SamplingParams(max_tokens=NUM_TOKENS))
    response = await client.responses.create(model="fake", **BODY)
    assert response.output_text == same.text
    assert (response.status, response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert response.store is False
    assert response.usage.input_tokens == same.num_prompt_tokens
    assert response.usage.output_tokens == NUM_TOKENS
    stopped = await client.responses.create(
        model="fake", **BODY, extra_body={"stop": [same.text[3:5]]}
    )
    assert (stopped.status, stopped.output_text) == ("completed", same.text[:3])


async def test_a_stream_has_an_event_for_each_token_and_tells_the_same(setup, client) -> None:
    whole = await client.responses.create(model="fake", **BODY)
    stream = await client.responses.create(model="fake", **BODY, stream=True)
    events = [event async for event in stream]
    deltas = ["response.output_text.delta"] * NUM_TOKENS
    assert [event.type for event in events] == [*BEFORE, *deltas, *AFTER]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events[4:-4]) == whole.output_text
    last = events[-1].response
    assert (last.output_text, last.usage) == (whole.output_text, whole.usage)


async def test_items_become_messages(setup, client) -> None:
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "user", "content": "b", "tool_calls": [], "refusal": None},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "c"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "d"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "e"},
    ]
    prompt = '<system>a<user>b<assistant>cd[{"name": "f", "arguments": {}}]<tool>e'
    same = await setup.client.generate(prompt, SamplingParams(max_tokens=5))
    response = await client.responses.create(model="fake", input=items, max_output_tokens=5)
    assert response.output_text == same.text


async def read(setup: HttpSetup, num: int | None = None, **body) -> list[Sent]:
    """Return the first events of a stream, or all of them; then break it off."""
    sent = {**BODY, "stream": True, "background": True, **body}
    async with setup.http.stream("POST", PATH, json=sent) as response:
        return await take(response, num)


async def take(response, num: int | None = None) -> list[Sent]:
    assert response.status_code == 200, await response.aread()
    events = []
    async with aclosing(events_of(response)) as each:
        async for event in each:
            events.append(event)
            if len(events) == num:
                break
    return events


def shown(events: list[Sent]) -> list[dict]:
    """Events without what each response has for itself."""
    found = []
    for event in events:
        data = {key: value for key, value in event.data.items() if key not in ("item_id", "item")}
        if "response" in data:
            own = ("id", "created_at", "output")
            data["response"] = {k: v for k, v in data["response"].items() if k not in own}
        found.append(data)
    return found


async def test_broken_anywhere_a_stream_goes_on_after_any_event(setup) -> None:
    """Held here it goes on by its id; elsewhere it is asked for again, and computed again."""
    seed = 11
    whole = shown(await read(setup, seed=seed))
    assert len(whole) == len(BEFORE) + NUM_TOKENS + len(AFTER)
    for num in range(1, len(whole)):
        first = await read(setup, num, seed=seed)
        own = first[0].data["response"]
        for after in {num - 1, num // 2}:
            query = {"starting_after": after, "stream": "true"}
            url = f"{PATH}/{own['id']}"
            async with setup.http.stream("GET", url, params=query) as response:
                rest = await take(response)
            assert shown(rest) == whole[after + 1 :], (num, after)
            assert [int(event.id) for event in rest] == list(range(after + 1, len(whole)))
        resume = {"id": f"other-{num}", "seed": seed, "starting_after": num - 1}
        again = await read(setup, resume={**resume, "created_at": own["created_at"]})
        assert shown(again) == whole[num:]


async def test_a_stream_that_goes_on_has_the_request_id_that_it_had(setup) -> None:
    (first,) = await read(setup, 1, seed=3)
    response_id = first.data["response"]["id"]
    resume = {"id": response_id, "seed": 3, "starting_after": 0}
    body = {**BODY, "stream": True, "resume": resume}
    for method, path, content in (("GET", f"{PATH}/{response_id}", None), ("POST", PATH, body)):
        headers = {"x-request-id": "another"}
        async with setup.http.stream(method, path, json=content, headers=headers) as response:
            assert f"resp_{response.headers['x-request-id']}" == response_id, method
            assert (await take(response))[-1].data["response"]["id"] == response_id


async def test_a_response_that_nobody_wants_any_more_is_cancelled(setup, client) -> None:
    setup.fake.hold()
    (first,) = await read(setup, 1)
    response_id = first.data["response"]["id"]
    cancelled = await client.responses.cancel(response_id)
    assert (cancelled.id, cancelled.status) == (response_id, "cancelled")
    request_id = response_id.removeprefix("resp_")
    await setup.fake.until(lambda: request_id in setup.fake.cancelled)
    await setup.fake.release()
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response_id)


async def test_what_is_not_held_is_a_404_that_says_what_to_do(setup, client) -> None:
    with pytest.raises(openai.NotFoundError, match="POST its request again with resume"):
        await client.responses.retrieve("resp_unknown")
    (first,) = await read(setup, 1, background=False)
    response = await setup.http.get(f"{PATH}/{first.data['response']['id']}")
    assert response.status_code == 404


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "a"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"text": {"format": {}}}, "text.format.type"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"metadata": {str(i): "a" for i in range(17)}}, "metadata"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"stream": True, "resume": {"id": "x", "seed": -1}}, "resume.seed"),
        ({"stream": True, "resume": {"id": "x", "created_at": 10**18}}, "resume.created_at"),
        ({"input": 5}, "input"),
        ({"input": [], "instructions": None}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": "a"}, {"role": 5}]}, "input[1].role"),
        ({"input": [{"type": "reasoning", "content": 5}]}, "input[0].content"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary"),
        ({"input": [{"type": "reasoning", "summary": [5]}]}, "input[0].summary[0]"),
        ({"input": [{"type": "reasoning", "content": [{"text": 5}]}]}, "input[0].content[0].text"),
        ({"input": [{"role": 5}], "instructions": "be brief"}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"content": "a"}]}, "input[0].role"),
        *(({"input": [{"role": role, "tool_call_id": "c", "content": "a"}]}, "input[0].role")
          for role in ("tool", "function")),
        *(({"input": [{"role": "assistant", "content": "a", name: value}]}, f"input[0].{name}")
          for name, value in (
              ("function_call", {"name": "f", "arguments": "{}"}),
              ("tool_calls", [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]),
              ("audio", {"id": "a"}), ("refusal", "no"), ("reasoning_content", "Hm"),
          )),
        ({"input": [{"role": "assistant", "tool_calls": [{}]}]}, "input[0].tool_calls"),
        *(({"input": [{**CALL, name: wrong}]}, f"input[0].{name}")
          for name in ("name", "call_id", "arguments") for wrong in (None, 5)),
        ({"input": [{**CALL, "name": ""}]}, "input[0].name"),
        ({"input": [CALL, {"type": "function_call_output", "call_id": "c"}]}, "input[1].output"),
        ({"input": [CALL, {**RESULT, "call_id": 5}]}, "input[1].call_id"),
        ({"input": [CALL, {**RESULT, "output": 5}]}, "input[1].output"),
        ({"input": [{"role": "user", "content": "a"}] * 4097}, "input"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": 5}]}, "tools[0].parameters"),
        ({"tools": [{"type": "function", "name": "f", "parameters": "z"}]}, "tools[0].parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": "z"}}]},
         "tools[0].function.parameters"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"truncation": "auto"}, "truncation"),
        ({"resume": {"id": "x", "seed": 1}}, "resume"),
        ({"stream": True, "resume": {"id": "x"}}, "seed"),
        ({"stream": True, "resume": {"seed": 1}}, "resume.id"),
        ({"stream": True, "resume": {"id": "resp_x\r\ny: z", "seed": 1}}, "resume.id"),
        ({"stream": True, "resume": {"id": "a" * 129, "seed": 1}}, "resume.id"),
        ({"stream": True, "resume": {"id": "x", "starting_after": -2}}, "resume.starting_after"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"include": ["reasoning.encrypted_content", "foo"]}, "include[1]"),
        ({"include": [], "top_logprobs": 21}, "top_logprobs"),
        ({"include": [], "top_logprobs": -1}, "top_logprobs"),
    ],
)  # fmt: skip
async def test_a_bad_field_is_named(setup, body, param) -> None:
    response = await setup.post(PATH, {**BODY, **body})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
