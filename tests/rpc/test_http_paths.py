"""What the HTTP port tells of itself: its models by each of their names, its paths, its state."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire import SamplingParams
from tests.fakes.fake_scheduler import MODEL, FakeScheduler
from tests.rpc.http_setup import TEXT_TEMPLATE, bodies, http_router
from tests.rpc.router_setup import BACKEND, PROMPT, PROMPT_IDS, router_for
from tests.scraping import Scrape

BODIES = bodies(PROMPT, 3)
MESSAGES = [{"role": "user", "content": PROMPT}]
NAMES = ["fake", "other", "a/third"]
ANTHROPIC = {"anthropic-version": "2023-06-01"}


def named_cell() -> FakeScheduler:
    """Of a model with several names."""
    return FakeScheduler(model=replace(MODEL, aliases=tuple(NAMES[1:])))


async def test_models_are_listed_in_the_shape_of_the_client_that_asks(tmp_path: Path) -> None:
    async with http_router(tmp_path, named_cell()) as setup:
        answer = (await setup.http.get("/v1/models")).json()
        assert answer.keys() == {"object", "data"}
        assert [each["id"] for each in answer["data"]] == NAMES
        for each in answer["data"]:
            assert (each["object"], each["root"], each["max_model_len"]) == ("model", "fake", 256)
            assert (await setup.http.get(f"/v1/models/{each['id']}")).json() == each
        answer = (await setup.http.get("/v1/models", headers=ANTHROPIC)).json()
        assert answer.keys() == {"data", "has_more", "first_id", "last_id"}
        shown = (answer["first_id"], answer["last_id"], answer["has_more"])
        assert shown == ("fake", "a/third", False)
        assert [each["id"] for each in answer["data"]] == NAMES
        for each in answer["data"]:
            assert each.keys() == {"type", "id", "display_name", "created_at"}
            assert (each["type"], each["display_name"]) == ("model", each["id"])
            one = await setup.http.get(f"/v1/models/{each['id']}", headers=ANTHROPIC)
            assert one.json() == each
        missing = (await setup.http.get("/v1/models/none")).json()["error"]["message"]
        assert missing == "model: none is not served; served: fake, other, a/third"


@pytest.mark.parametrize("path", BODIES)
async def test_an_answer_has_the_first_name_whichever_was_asked_for(
    tmp_path: Path, path: str
) -> None:
    async with http_router(tmp_path, named_cell(), chat_template=TEXT_TEMPLATE) as setup:
        for name in (*NAMES, ""):
            body = {**BODIES[path], "model": name}
            response = await setup.post(path, body)
            assert response.status_code == 200, (name, response.text)
            assert response.json()["model"] == "fake", name
            first = (await setup.events(path, body))[0].data
            shown = first.get("message") or first.get("response") or first
            assert shown["model"] == "fake", name
        missing = await setup.post(path, {**BODIES[path], "model": "none"})
        assert missing.status_code == 404


async def test_vectors_and_tokens_are_given_by_each_name(tmp_path: Path) -> None:
    async with http_router(tmp_path, named_cell()) as setup:
        for model in NAMES:
            vectors = (await setup.post("/v1/embeddings", {"input": "x", "model": model})).json()
            assert vectors["model"] == "fake"
            tokens = (await setup.post("/tokenize", {"prompt": PROMPT, "model": model})).json()
            assert (tokens["tokens"], tokens["max_model_len"]) == (list(PROMPT_IDS), 256)
            params = SamplingParams(max_tokens=1)
            assert (await setup.client.generate(PROMPT, params, model=model)).token_ids


async def test_the_tokens_of_a_response_are_counted_without_one(tmp_path: Path) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    body = {"input": PROMPT, "instructions": "list"}
    path, num_tokens = "/v1/responses", len(BACKEND.encode(f"<system>list<user>{PROMPT}").ids)
    async with http_router(tmp_path, chat_template=template) as setup:
        counted = await setup.post(f"{path}/input_tokens", body)
        assert counted.status_code == 200, counted.text
        assert counted.json() == {"object": "response.input_tokens", "input_tokens": num_tokens}
        assert not setup.fake.submitted
        answer = (await setup.post(path, {**body, "max_output_tokens": 1})).json()
        assert answer["usage"]["input_tokens"] == num_tokens
        refused = await setup.post(f"{path}/input_tokens", {"input": 5})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *BODIES.items(),
        ("/v1/messages/count_tokens", {"messages": MESSAGES}),
        ("/v1/responses/input_tokens", {"input": PROMPT}),
        ("/tokenize", {"messages": MESSAGES}),
        ("/tokenize", {"prompt": PROMPT}),
        ("/v1/embeddings", {"input": PROMPT}),
    ],
)
async def test_a_model_that_is_not_there_is_told_with_every_name_of_those_that_are(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    async with http_router(tmp_path, named_cell(), chat_template=TEXT_TEMPLATE) as setup:
        response = await setup.post(path, {**body, "model": "none"})
    assert response.status_code == 404, response.text
    message = response.json()["error"]["message"]
    assert message == "model: none is not served; served: fake, other, a/third"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_ping_says_whether_requests_can_be_computed(tmp_path: Path, method: str) -> None:
    async with http_router(tmp_path, api_key=("one",)) as setup:
        response = await setup.http.request(method, "/ping")
        assert (response.status_code, response.json()) == (200, {"status": "ok"})
    async with router_for(tmp_path, ("127.0.0.1:1",), http_port=0) as (router, _, _):
        base_url = f"http://{router.http_address}"
        async with httpx.AsyncClient(base_url=base_url, timeout=60.0) as http:
            response = await http.request(method, "/ping")
        assert response.status_code == 503
        assert response.json()["error"]["message"].startswith("not serving: ")


async def test_the_load_is_how_many_requests_are_under_way(tmp_path: Path) -> None:
    async with http_router(tmp_path) as setup:

        async def load() -> Any:
            return (await setup.http.get("/load")).json()

        assert await load() == {"server_load": 0}
        setup.fake.hold()
        asking = [
            asyncio.create_task(setup.post("/v1/completions", BODIES["/v1/completions"]))
            for _ in range(2)
        ]
        await setup.fake.until(lambda: setup.fake.num_running() == 2)
        assert await load() == {"server_load": 2}
        await setup.fake.release()
        for answer in await asyncio.gather(*asking):
            assert answer.status_code == 200
        assert await load() == {"server_load": 0}


async def test_the_tokenizer_is_told_with_the_template_in_use(tmp_path: Path) -> None:
    async with http_router(tmp_path) as setup:
        answer = (await setup.http.get("/tokenizer_info")).json()
        assert answer == {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": None}
    config = {"tokenizer_class": "Mine", "model_max_length": 7, "chat_template": "another"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    async with http_router(tmp_path, chat_template=TEXT_TEMPLATE) as setup:
        answer = (await setup.http.get("/tokenizer_info")).json()
        assert answer == {**config, "chat_template": TEXT_TEMPLATE}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"a": 1e400, "b": [-1e999, 0.5, NaN]}', {"a": "1e400", "b": ["-1e999", 0.5, "NaN"]}),
        ('{"a": "\\ud800"}', {}),
        (f'{{"a": {"[" * 9999}', {}),
        ("[1e400]", {}),
    ],
)
async def test_whatever_the_tokenizer_has_can_be_told(
    tmp_path: Path, text: str, shown: dict[str, Any]
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(text)
    async with http_router(tmp_path) as setup:
        answer = await setup.http.get("/tokenizer_info")
        own = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": None}
        assert answer.json() == {**own, **shown}


async def test_metrics_are_there_under_our_names_and_vllms(tmp_path: Path) -> None:
    async with http_router(tmp_path) as setup:
        await setup.post("/v1/completions", BODIES["/v1/completions"])
        response = await setup.http.get("/metrics")
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/plain")
        metrics = Scrape(response.text)
        count = {"route": "/v1/completions", "status": "200"}
        assert metrics("quire_router_http_requests_total", **count) == 1
        assert metrics("vllm:generation_tokens_total", model_name="fake") == 3


@pytest.mark.parametrize("path", ["/load", "/metrics", "/tokenizer_info", "/v1/models"])
async def test_what_tells_of_requests_or_models_wants_a_key(tmp_path: Path, path: str) -> None:
    async with http_router(tmp_path, api_key=("one",)) as setup:
        assert (await setup.http.get(path)).status_code == 401
        assert (await setup.http.get(path, headers={"x-api-key": "one"})).status_code == 200


@pytest.mark.parametrize("path", ["/nowhere", "/v1/messages/none", "/v1/completions/"])
async def test_a_path_that_is_not_there_is_told_with_those_that_are(
    tmp_path: Path, path: str
) -> None:
    async with http_router(tmp_path) as setup:
        response = await setup.post(path, {})
        message = response.json()["error"]["message"]
        assert response.status_code == 404
        beginning, end = "path: must be one of ", f", got {path}"
        assert message.startswith(beginning) and message.endswith(end), message
        there = message.removeprefix(beginning).removesuffix(end).split(", ")
        assert len(there) == len(set(there))
        assert {"/", "/ping", "/metrics", "/v1/messages/count_tokens", *BODIES} <= set(there)
        for each in there:
            assert "path: must be" not in (await setup.http.get(each)).text, each


@pytest.mark.parametrize(
    ("method", "path", "methods"),
    [
        ("GET", "/v1/completions", "POST"),
        ("GET", "/v1/messages", "POST"),
        ("GET", "/v1/responses/resp_1/cancel", "POST"),
        ("POST", "/v1/models", "GET"),
        ("POST", "/v1/models/a/b", "GET"),
        ("DELETE", "/v1/responses/resp_1", "GET"),
        ("DELETE", "/ping", "GET or POST"),
    ],
)
async def test_a_method_that_a_path_does_not_take_is_told_with_those_that_it_does(
    tmp_path: Path, method: str, path: str, methods: str
) -> None:
    async with http_router(tmp_path) as setup:
        response = await setup.http.request(method, path)
    assert response.status_code == 405
    message = f"method: must be {methods} for {path}, got {method}"
    assert response.json()["error"]["message"] == message
    allowed = response.headers["allow"].split(", ")
    assert [each for each in allowed if each != "HEAD"] == methods.split(" or ")
    assert ("HEAD" in allowed) == ("GET" in allowed)
