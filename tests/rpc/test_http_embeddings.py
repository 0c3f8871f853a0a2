"""/v1/embeddings, /score and /rerank of a real router: OpenAI's, vLLM's and Jina's shapes."""

import asyncio
import base64
import json
import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest

from quire.contract.embeddings import cosine, vector_of
from quire.contract.pooling_params import PoolingParams
from router.http.bodies import Bodies
from tests.fakes.fake_model import fake_vector
from tests.fakes.fake_scheduler import MODEL
from tests.rpc.http_setup import http_router
from tests.rpc.router_setup import BACKEND, PROMPT, PROMPT_IDS

PATH = "/v1/embeddings"
TEXTS = [PROMPT, "x", "another text", "x"]


def ids_of(text: str) -> list[int]:
    return list(BACKEND.encode(text).ids)


def vector(text: str, normalize: bool = True) -> list[float]:
    return vector_of(fake_vector(ids_of(text), PoolingParams(normalize))).tolist()


def score(first: str, second: str) -> float:
    return cosine(vector(first), vector(second))


@pytest.mark.parametrize("shown", [TEXTS, list(map(ids_of, TEXTS))], ids=["texts", "token ids"])
async def test_a_vector_for_each_input(tmp_path, shown) -> None:
    async with http_router(tmp_path) as setup:
        response = await setup.post(PATH, {"input": shown, "model": "fake", "user": "me"})
        assert response.status_code == 200, response.text
        answer = response.json()
        assert answer["data"] == [
            {"object": "embedding", "index": index, "embedding": vector(text)}
            for index, text in enumerate(TEXTS)
        ]
        number = sum(map(len, map(ids_of, TEXTS)))
        assert answer["usage"] == {
            "prompt_tokens": number,
            "total_tokens": number,
            "completion_tokens": 0,
        }
        assert (answer["object"], answer["model"]) == ("list", "fake")
        assert answer["id"] == f"embd-{response.headers['x-request-id']}"


@pytest.mark.parametrize("shown", [PROMPT, list(PROMPT_IDS)], ids=["text", "token ids"])
@pytest.mark.parametrize("name", ["normalize", "use_activation"])
async def test_one_input_that_is_not_normalized(tmp_path, shown, name) -> None:
    async with http_router(tmp_path) as setup:
        body = {"input": shown, name: False, "encoding_format": "base64"}
        [entry] = (await setup.post(PATH, body)).json()["data"]
        found = vector_of(base64.b64decode(entry["embedding"]))
        assert found.tolist() == vector(PROMPT, normalize=False)
        assert not math.isclose(math.hypot(*found), 1.0)


async def test_extras_of_vllm_reach_the_cell(tmp_path) -> None:
    async with http_router(tmp_path) as setup:
        extras = {"priority": 4, "cache_salt": "mine", "truncate_prompt_tokens": 2}
        answer = await setup.post(PATH, {"input": PROMPT, **extras}, **{"x-request-id": "r1"})
        assert answer.json()["usage"]["prompt_tokens"] == 2
        [sent] = setup.fake.submitted
        assert (sent.prompt, sent.request_id) == (PROMPT_IDS[-2:], "r1")
        # What the model takes: all of it.
        body = {"input": PROMPT, "truncate_prompt_tokens": -1, "add_special_tokens": False}
        answer = await setup.post(PATH, body)
        assert answer.json()["usage"]["prompt_tokens"] == len(PROMPT_IDS)
        body = {"input": [[7] * 300], "truncate_prompt_tokens": -1}
        answer = await setup.post(PATH, body)
        assert answer.json()["usage"]["prompt_tokens"] == MODEL.max_model_len


@pytest.mark.parametrize("encoding", [openai.omit, "float", "base64"])
async def test_the_stock_client(tmp_path, encoding: Any) -> None:
    async with http_router(tmp_path) as setup:
        url = f"http://{setup.router.http_address}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            answer = await client.embeddings.create(
                model="fake", input=TEXTS, encoding_format=encoding
            )
            if encoding == "base64":
                found = [vector_of(base64.b64decode(each.embedding)) for each in answer.data]
                assert [each.tolist() for each in found] == list(map(vector, TEXTS))
            else:
                assert [list(each.embedding) for each in answer.data] == list(map(vector, TEXTS))
            with pytest.raises(openai.BadRequestError, match="dimensions: must be absent"):
                await client.embeddings.create(model="fake", input="x", dimensions=2)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"input": PROMPT}),
        ("/score", {"text_1": PROMPT, "text_2": "x"}),
        ("/rerank", {"query": PROMPT, "documents": ["x"]}),
    ],
)
async def test_a_body_counts_as_held_until_its_vectors_are_there(
    tmp_path, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    most = len(json.dumps(body, ensure_ascii=False).encode()) + 10  # no other one beside it
    monkeypatch.setattr("router.http.front.Bodies", partial(Bodies, max_held_bytes=most))
    async with http_router(tmp_path) as setup:
        setup.fake.hold()
        first = asyncio.create_task(setup.post(path, body))
        await setup.fake.until(lambda: setup.fake.num_running() > 0)
        other = await setup.post("/tokenize", {"prompt": PROMPT})
        assert other.status_code == 429
        assert other.headers["retry-after"] == "1"
        await setup.fake.release()
        assert (await first).status_code == 200
        assert (await setup.post("/tokenize", {"prompt": PROMPT})).status_code == 200


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (PATH, {}, "input: must be a string, token ids, or an array of them, got none"),
    (PATH, {"input": []}, "input: must be a string, token ids, or an array of them, got none"),
    (PATH, {"input": 3}, "input: must be a string, token ids, or an array of them, got a number"),
    (PATH, {"input": ["x", 3]}, "input: must be all strings or all token ids, got both"),
    (PATH, {"input": ["x"] * 2049}, "input: must have at most 2048 items, got 2049"),
    (PATH, {"input": ""}, "input: at least 1 token, got 0"),
    (PATH, {"input": ["x", ""]}, "input[1]: at least 1 token, got 0"),
    (PATH, {"input": [[5], ["x"]]}, "input[1]: must hold token ids in [0, 2147483647], got a"),
    (PATH, {"input": [5, -1]}, "input: must hold token ids in [0, 2147483647], got -1"),
    (PATH, {"input": [[5], [1000]]}, "input[1]: token ids must be in [0, 1000), got 1000"),
    (
        PATH,
        {"input": [7] * 257},
        "input: must be at most 256 tokens, got 257: this model's maximum context length is 256",
    ),
    (PATH, {"input": "x", "encoding_format": "bytes"}, "encoding_format: must be one of float,"),
    (PATH, {"input": "x", "embed_dtype": "float16"}, "embed_dtype: must be float32"),
    (PATH, {"input": "x", "dimensions": 64}, "dimensions: must be absent: config.json of"),
    (PATH, {"input": "x", "lora_request": {}}, "lora_request: must be absent"),
    (PATH, {"input": "x", "normalize": "yes"}, "normalize: must be true or false, got a string"),
    (PATH, {"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens: must be in"),
    (
        PATH,
        {"messages": [], "add_generation_prompt": True, "continue_final_message": True},
        "add_generation_prompt: must be false with continue_final_message",
    ),
    (PATH, {"input": "x", "priority": 200}, "priority: must be in"),
    ("/score", {}, "text_1: must be a string or an array of strings, got none"),
    ("/score", {"text_1": "x"}, "text_2: must be a string or an array of strings, got none"),
    ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1: must have 1 item, or as many as"),
    ("/score", {"text_1": "a", "text_2": ["c", ""]}, "text_2[1]: at least 1 token, got 0"),
    ("/score", {"text_1": "", "text_2": "c"}, "text_1: at least 1 token, got 0"),
    ("/v1/score", {"queries": "a", "documents": ["b", 3]}, "documents: must hold strings"),
    ("/score", {"text_1": "a", "text_2": ["b"] * 2048}, "text_2[2047]: must be one of at most"),
    (
        "/score",
        {"text_1": "a", "text_2": "b", "queries": "c"},
        "queries: must be absent where text_1 and text_2 are given",
    ),
    ("/score", {"queries": "a", "items": "b", "documents": "c"}, "items: must be absent where"),
    (
        "/rerank",
        {"query": "a", "documents": ["b"], "text_1": "c"},
        "text_1: must be absent where query and documents are given",
    ),
    ("/rerank", {"documents": ["a"]}, "query: must be a string, got none"),
    ("/rerank", {"query": "a"}, "documents: must be an array of strings, got none"),
    ("/v1/rerank", {"query": "a", "documents": [{"title": "b"}]}, "documents[0]: must be a string"),
    ("/v2/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n: must be at least 0"),
    ("/rerank", {"query": "", "documents": ["b"]}, "query: at least 1 token, got 0"),
]


async def test_what_is_out_of_bounds_is_refused_in_openais_shape(tmp_path) -> None:
    async with http_router(tmp_path) as setup:
        for path, body, words in REFUSED:
            response = await setup.post(path, body)
            error = response.json()["error"]
            assert response.status_code == 400, (body, error)
            assert error["message"].startswith(words), (words, error)
            assert error["type"] == "invalid_request_error"
            assert error["param"] == words.partition(":")[0]
        unknown = await setup.post(PATH, {"input": "x", "model": "another"})
        assert unknown.status_code == 404


TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{{ mood }}"
)
MESSAGES = [{"role": "system", "content": "list"}, {"role": "user", "content": "class 中文"}]
RENDERED = "<system>list<user>class 中文"


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({}, RENDERED),
        ({"add_generation_prompt": True}, f"{RENDERED}<assistant>"),
        ({"chat_template_kwargs": {"mood": "!"}}, f"{RENDERED}!"),
    ],
)
async def test_messages_are_the_prompt_that_the_template_makes_of_them(
    tmp_path: Path, options: dict[str, Any], prompt: str
) -> None:
    async with http_router(tmp_path, chat_template=TEMPLATE) as setup:
        body = {"messages": MESSAGES, **options}
        answer = (await setup.post(PATH, body)).json()
        [sent] = setup.fake.submitted
        assert list(sent.prompt) == ids_of(prompt)
        [entry] = answer["data"]
        assert entry["embedding"] == vector(prompt)
        assert answer["usage"]["prompt_tokens"] == len(ids_of(prompt))
        # Where a chat begins its answer unless told otherwise, a vector does not.
        tokens = await setup.post("/tokenize", {"add_generation_prompt": False, **body})
        assert tokens.json()["tokens"] == ids_of(prompt)
        first = {"truncate_prompt_tokens": 2, "truncation_side": "right"}
        assert (await setup.post(PATH, {**body, **first})).status_code == 200
        assert list(setup.fake.submitted[-1].prompt) == ids_of(prompt)[:2]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": MESSAGES, "input": "x"}, "input: must be absent where messages are given"),
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content: "),
        ({"messages": [{"role": "user", "content": "long " * 300}]}, "messages: must be at most"),
        ({"messages": MESSAGES, "chat_template": "x"}, "chat_template: must be absent: only that"),
    ],
)
async def test_messages_that_have_no_vector_are_refused(
    tmp_path: Path, body: dict[str, Any], words: str
) -> None:
    async with http_router(tmp_path, chat_template=TEMPLATE) as setup:
        response = await setup.post(PATH, body)
        error = response.json()["error"]
        assert response.status_code == 400, error
        assert error["message"].startswith(words), error
        assert error["param"] == words.partition(":")[0]
        assert not setup.fake.submitted


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    "names",
    [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items")],
)
async def test_scores_of_one_text_and_many(tmp_path, path, names) -> None:
    async with http_router(tmp_path) as setup:
        response = await setup.post(path, {names[0]: PROMPT, names[1]: TEXTS})
        answer = response.json()
        assert answer["data"] == [
            {"index": index, "object": "score", "score": score(PROMPT, text)}
            for index, text in enumerate(TEXTS)
        ]
        assert answer["data"][0]["score"] == pytest.approx(1.0)
        assert (answer["object"], answer["model"]) == ("list", "fake")
        number = len(PROMPT_IDS) + sum(map(len, map(ids_of, TEXTS)))
        assert answer["usage"]["prompt_tokens"] == number


async def test_scores_of_pairs(tmp_path) -> None:
    async with http_router(tmp_path) as setup:
        others = TEXTS[::-1]
        answer = await setup.post("/score", {"text_1": TEXTS, "text_2": others})
        found = [each["score"] for each in answer.json()["data"]]
        assert found == [score(*each) for each in zip(TEXTS, others, strict=True)]
        assert all(-1.0 <= each <= 1.0 for each in found)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_documents_in_the_order_in_which_they_fit_a_query(tmp_path, path) -> None:
    async with http_router(tmp_path) as setup:
        response = await setup.post(path, {"model": "fake", "query": "x", "documents": TEXTS})
        answer = response.json()
        assert answer["results"] == [
            {
                "index": index,
                "relevance_score": score("x", TEXTS[index]),
                "document": {"text": TEXTS[index]},
            }
            for index in sorted(range(4), key=lambda index: -score("x", TEXTS[index]))
        ]
        assert [each["index"] for each in answer["results"][:2]] == [1, 3], "ties by index"
        scores = [each["relevance_score"] for each in answer["results"]]
        assert all(first >= second for first, second in pairwise(scores))
        assert answer["usage"]["total_tokens"] > 0
        documents = [{"text": text} for text in TEXTS]
        body = {"query": "x", "documents": documents, "top_n": 3, "return_documents": False}
        few = (await setup.post(path, body)).json()
        for each in answer["results"]:
            del each["document"]
        assert few["results"] == answer["results"][:3]
