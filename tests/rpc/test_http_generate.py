"""/generate of a real router: prompt and texts as one, as the server of vLLM's first releases."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tokenizers.processors import TemplateProcessing

from quire import SamplingParams
from quire.contract.errors import NO_TOKEN, NOT_FINITE
from quire.v1 import common_pb2
from router.http.generate import END
from tests.fakes.small_tokenizers import byte_level
from tests.rpc.http_setup import HttpSetup, http_router
from tests.rpc.router_setup import PROMPT

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/generate"
BODY = {"prompt": PROMPT, "max_tokens": 24}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory) -> AsyncIterator[HttpSetup]:
    async with http_router(tmp_path_factory.mktemp("model")) as made:
        yield made


async def parts_of(setup: HttpSetup, **body: Any) -> list[Any]:
    answer = await setup.post(PATH, {**BODY, "stream": True, **body})
    assert answer.status_code == 200, answer.text
    *parts, rest = answer.content.split(END)
    assert rest == b""
    return [json.loads(each) for each in parts]


async def test_texts_are_those_of_the_grpc_api_behind_the_prompt(setup: HttpSetup) -> None:
    same = await setup.client.generate(PROMPT, SamplingParams(max_tokens=24))
    answer = await setup.post(PATH, BODY)
    assert answer.json() == {"text": [PROMPT + same.text]}
    parts = await parts_of(setup)
    assert parts[-1] == {"text": [PROMPT + same.text]}
    lengths = [len(each["text"][0]) for each in parts]
    assert lengths == sorted(lengths)


async def test_a_prompt_gets_nothing_around_it_where_that_is_said(tmp_path) -> None:
    backend = byte_level()
    backend.add_special_tokens(["<s>"])
    special = [("<s>", backend.token_to_id("<s>"))]
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=special)
    async with http_router(tmp_path, backend=backend) as setup:
        texts = set()
        for added in (True, False):
            # The fake model begins the prompt again: so is what is added to it.
            body = {"prompt": PROMPT, "max_tokens": 4, "add_special_tokens": added}
            body["skip_special_tokens"] = False
            text = (await setup.post("/v1/completions", body)).json()["choices"][0]["text"]
            assert (await setup.post(PATH, body)).json() == {"text": [PROMPT + text]}
            texts.add(text)
        assert len(texts) == 2
        wrong = await setup.post(PATH, {"prompt": PROMPT, "add_special_tokens": "no"})
        assert wrong.json()["error"]["param"] == "add_special_tokens"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cache_salt", "s" * 257),
        ("prompt_token_ids", [1]),
        ("thinking_token_budget", 0),
        ("max_tokens", "many"),
        ("temperature", -1),
        ("logit_bias", 5),
    ],
)
async def test_what_is_not_obeyed_is_refused(setup: HttpSetup, field: str, value: object) -> None:
    answer = await setup.post(PATH, {**BODY, field: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{field}: ")


async def test_an_answer_that_failed_is_none(setup: HttpSetup) -> None:
    setup.fake.num_tokens_until_error = 5
    try:
        for failure, status, message in (
            (common_pb2.FINISH_REASON_ERROR, 500, NOT_FINITE),
            (common_pb2.FINISH_REASON_NO_TOKEN, 400, NO_TOKEN),
        ):
            setup.fake.failure = failure
            answer = await setup.post(PATH, BODY)
            assert (answer.status_code, answer.json()["error"]["message"]) == (status, message)
            last = (await parts_of(setup))[-1]
            assert last["error"]["message"] == message
    finally:
        setup.fake.failure = common_pb2.FINISH_REASON_ERROR
        setup.fake.num_tokens_until_error = None
