"""/v1/completions of a real router: its tokens are those of the gRPC API, its shapes OpenAI's."""

import asyncio

import pytest

from quire import SamplingParams
from tests.fakes.small_tokenizers import byte_level
from tests.rpc.http_setup import events_of, http_router
from tests.rpc.router_setup import PROMPT, PROMPT_IDS, echoed, text_of

PATH = "/v1/completions"
BODY = {"prompt": PROMPT, "max_tokens": 24}


@pytest.mark.parametrize("prompt", [PROMPT, list(PROMPT_IDS)], ids=["text", "ids"])
async def test_a_completion_is_that_of_the_grpc_api(tmp_path, prompt) -> None:
    async with http_router(tmp_path) as setup:
        same = await setup.client.generate(PROMPT, SamplingParams(max_tokens=24))
        response = await setup.post(PATH, {**BODY, "prompt": prompt, "return_token_ids": True})
        assert response.status_code == 200, response.text
        answer = response.json()
        [choice] = answer["choices"]
        assert choice["text"] == same.text
        assert tuple(choice["token_ids"]) == same.token_ids
        assert choice["finish_reason"] == "length"
        assert choice["seed"] == same.seed
        assert answer["object"] == "text_completion"
        assert answer["model"] == "fake"
        assert answer["usage"] == {
            "prompt_tokens": len(PROMPT_IDS),
            "completion_tokens": 24,
            "total_tokens": len(PROMPT_IDS) + 24,
            "prompt_tokens_details": {"cached_tokens": 0},
        }


async def test_each_token_is_an_event_numbered_by_the_tokens(tmp_path) -> None:
    async with http_router(tmp_path) as setup:
        whole = (await setup.post(PATH, BODY)).json()["choices"][0]["text"]
        options = {"stream_options": {"include_usage": True}}
        *events, last, done = await setup.events(PATH, {**BODY, **options})
        assert done.data == "[DONE]"
        assert last.data["usage"]["completion_tokens"] == 24
        assert last.data["choices"] == []
        assert "".join(event.choice["text"] for event in events) == whole
        assert [event.id for event in events] == [str(number) for number in range(1, 26)]
        token_ids = [tuple(event.choice["token_ids"]) for event in events]
        assert token_ids == [*((token_id,) for token_id in echoed(24)), ()]
        assert [event.choice["finish_reason"] for event in events] == [None] * 24 + ["length"]


async def test_the_text_of_an_event_depends_on_the_tokens_and_not_on_their_pace(tmp_path) -> None:
    async with http_router(tmp_path) as setup:
        at_once = await setup.events(PATH, {**BODY, "stop": ["zz"]})
        setup.fake.hold()
        body = {**BODY, "stop": ["zz"], "stream": True}
        async with setup.http.stream("POST", PATH, json=body) as response:
            events = events_of(response)
            one_by_one = []
            for _ in range(24):
                await setup.fake.step()
                one_by_one.append(await anext(events))
            await setup.fake.release()
            one_by_one += [event async for event in events]
        texts = [[each.choice["text"] for each in some[:-1]] for some in (at_once, one_by_one)]
        assert texts[0] == texts[1]


async def test_several_prompts_are_choices_in_order(tmp_path) -> None:
    async with http_router(tmp_path) as setup:
        body = {"prompt": ["The list", PROMPT], "max_tokens": 3}
        response = await setup.post(PATH, body)
        choices = response.json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1]
        assert choices[1]["text"] == text_of(echoed(3))
        events = await setup.events(PATH, body)
        texts = [""] * 2
        for event in events[:-1]:
            texts[event.choice["index"]] += event.choice["text"]
        assert texts == [choice["text"] for choice in choices]
        assert events[-2].id == "4.4"


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_goes_away_ends_its_request(tmp_path, is_stream) -> None:
    async with http_router(tmp_path) as setup:
        setup.fake.hold()
        body = {**BODY, "stream": is_stream}
        calling = asyncio.create_task(setup.post(PATH, body, **{"x-request-id": "mine"}))
        await setup.fake.until(lambda: setup.fake.num_running() == 1)
        calling.cancel()
        await setup.fake.until(lambda: setup.fake.cancelled == ["mine"])


async def test_while_a_request_waits_its_stream_has_comments(tmp_path) -> None:
    async with http_router(tmp_path, sse_keep_alive_interval=0.05) as setup:
        setup.fake.hold()
        async with setup.http.stream("POST", PATH, json={**BODY, "stream": True}) as response:
            events = events_of(response)
            assert (await anext(events)).comment == "keep-alive"
            await setup.fake.release()
            rest = [event async for event in events]
        assert rest[-1].data == "[DONE]"


async def test_a_deadline_that_passes_is_a_504_or_an_event(tmp_path) -> None:
    async with http_router(tmp_path, sse_keep_alive_interval=0.05) as setup:
        setup.fake.hold()
        response = await setup.post(PATH, BODY, **{"x-request-timeout-s": "0.3"})
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "deadline_exceeded"
        events = await setup.late_events(PATH, BODY)
        assert events[-1].data["error"]["code"] == "deadline_exceeded"
        await setup.fake.until(lambda: setup.fake.num_running() == 0)


async def test_a_suffix_asks_for_what_stands_before_it(tmp_path) -> None:
    backend = byte_level()
    backend.add_special_tokens(["<fim_prefix>", "<fim_suffix>", "<fim_middle>"])
    body = {"prompt": ["def f(", "a"], "suffix": "):", "return_token_ids": True, "max_tokens": 9}
    async with http_router(tmp_path, backend=backend) as setup:
        choices = (await setup.post(PATH, body)).json()["choices"]
        for before, choice in zip(body["prompt"], choices, strict=True):
            prompt = f"<fim_prefix>{before}<fim_suffix>):<fim_middle>"
            assert choice["prompt_token_ids"] == backend.encode(prompt).ids
            # The fake model begins the prompt again, and its first token ends a middle.
            assert (choice["text"], choice["finish_reason"]) == ("", "stop")
        assert (await setup.post(PATH, {**body, "suffix": ""})).json()["choices"][0]["text"]
        # Each prompt would hold it.
        limit = setup.router.inference._validator._max_prompt_bytes
        many = await setup.post(PATH, {**body, "suffix": "x" * (limit // 2 + 1)})
        assert (many.status_code, many.json()["error"]["param"]) == (400, "suffix")
        assert "in all of 2 prompts" in many.json()["error"]["message"]


async def test_a_suffix_is_refused_where_the_model_has_no_tokens_for_it(tmp_path) -> None:
    async with http_router(tmp_path) as setup:
        response = await setup.post(PATH, {**BODY, "suffix": "):"})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "suffix"
        assert "no tokens to fill in a middle" in response.json()["error"]["message"]
