"""OpenAI's stock client and a real cluster: the tokens are those of the gRPC API."""

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from launch.cluster.supervisor import Cluster
from quire import AsyncClient, SamplingParams
from quire.contract.outputs import CellState, Completion
from tests.e2e.conftest import SharedClusters
from tests.e2e.router_kills import kill_in_time
from tests.rpc.http_setup import bodies

PROMPT = "The list class"
OWN: dict[str, Any] = {"temperature": 1}
"""What a client of gRPC has by itself, and one of HTTP by the model's generation_config.json."""


@pytest.fixture
def cluster(shared_clusters: SharedClusters) -> Cluster:
    return shared_clusters.get(port=0)


@pytest.fixture
async def http(cluster: Cluster) -> AsyncIterator[openai.AsyncOpenAI]:
    base_url = f"http://{cluster.router.http_address}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def grpc(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.router.address) as client:
        yield client


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], SamplingParams]] = {
    "greedy": ({"temperature": 0}, {}, SamplingParams(temperature=0.0)),
    "sampled": (
        {"seed": 5, "top_p": 0.9},
        {"top_k": 40},
        SamplingParams(seed=5, top_p=0.9, top_k=40),
    ),
    "several": ({"seed": 7, "n": 3, "logprobs": 2}, {}, SamplingParams(seed=7, n=3, logprobs=2)),
    "best": ({"seed": 7, "n": 2, "best_of": 4}, {}, SamplingParams(seed=7, n=2, best_of=4)),
    "stop": (
        {"seed": 1, "stop": ["e", "in"]},
        {"min_tokens": 4},
        SamplingParams(seed=1, stop=("e", "in"), min_tokens=4),
    ),
    "penalties": (
        {
            "seed": 3,
            "presence_penalty": 1,
            "frequency_penalty": 0.5,
            "logit_bias": {"5": 2, "9": -100},
        },
        {"repetition_penalty": 1.1, "min_p": 0.05, "ignore_eos": True},
        SamplingParams(
            seed=3,
            presence_penalty=1.0,
            frequency_penalty=0.5,
            logit_bias={5: 2.0, 9: -100.0},
            repetition_penalty=1.1,
            min_p=0.05,
            ignore_eos=True,
        ),
    ),
    "beams": (
        {"n": 3, "temperature": 0},
        {"use_beam_search": True},
        SamplingParams(n=3, use_beam_search=True, temperature=0.0),
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_completion_is_that_of_the_sdk(
    http: openai.AsyncOpenAI, grpc: AsyncClient, case: str
) -> None:
    options, extras, params = CASES[case]
    options = OWN | options
    extras = {**extras, "return_token_ids": True}
    model = (await http.models.list()).data[0].id
    expected = await grpc.generate_all(PROMPT, replace(params, max_tokens=20))
    answer = await http.completions.create(
        model=model, prompt=PROMPT, max_tokens=20, extra_body=extras, **options
    )
    assert [seen_of(each) for each in answer.choices] == list(map(told_of, expected))
    stream = await http.completions.create(
        model=model, prompt=PROMPT, max_tokens=20, extra_body=extras, stream=True, **options
    )
    texts, token_ids, reasons = (dict.fromkeys(range(params.n), start) for start in ("", (), None))
    async for chunk in stream:
        [choice] = chunk.choices
        texts[choice.index] += choice.text
        new = tuple(choice.model_extra["token_ids"])
        assert len(new) == (choice.finish_reason is None)
        token_ids[choice.index] += new
        reasons[choice.index] = choice.finish_reason
    streamed = [(texts[i], token_ids[i], reasons[i]) for i in range(params.n)]
    assert streamed == [seen[:3] for seen in map(told_of, expected)]


def seen_of(choice: Any) -> tuple[object, ...]:
    logprobs = choice.logprobs and tuple(choice.logprobs.token_logprobs)
    return choice.text, tuple(choice.model_extra["token_ids"]), choice.finish_reason, logprobs


def told_of(completion: Completion) -> tuple[object, ...]:
    logprobs = tuple(each.logprobs[0] for each in completion.logprobs) or None
    return completion.text, completion.token_ids, completion.finish_reason.value, logprobs


async def test_echo_shows_the_prompt_and_its_logprobs(
    http: openai.AsyncOpenAI, grpc: AsyncClient
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=1, prompt_logprobs=1)
    expected = await grpc.generate(PROMPT, params)
    told = [each.logprobs[0] for each in (*expected.prompt_logprobs, *expected.logprobs)]
    for max_tokens, text, count in ((4, PROMPT + expected.text, None), (0, PROMPT, -4)):
        answer = await http.completions.create(
            model="", prompt=PROMPT, max_tokens=max_tokens, temperature=0, echo=True, logprobs=1
        )
        [choice] = answer.choices
        assert choice.text == text
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == [None, *told[:count]]
        assert "".join(choice.logprobs.tokens) == text
        assert choice.logprobs.text_offset[0] == 0
        assert answer.usage.completion_tokens == max_tokens


async def test_texts_become_tokens_and_back(cluster: Cluster, grpc: AsyncClient) -> None:
    base_url = f"http://{cluster.router.http_address}"
    async with httpx.AsyncClient(base_url=base_url) as http:
        tokens = (await http.post("/tokenize", json={"prompt": PROMPT})).json()
        assert tokens["tokens"] == await grpc.tokenize(PROMPT)
        assert tokens["count"] == len(tokens["tokens"])
        back = (await http.post("/detokenize", json={"tokens": tokens["tokens"]})).json()
        assert back["prompt"] == await grpc.detokenize(tokens["tokens"], skip_special_tokens=False)


LONG = bodies("The list class has methods to sort items in place. " * 12, 2)


@pytest.mark.parametrize("path", LONG)
async def test_a_prompt_that_comes_again_is_counted_as_cached(cluster: Cluster, path: str) -> None:
    body = {**LONG[path], "cache_salt": uuid.uuid4().hex}  # nobody has sent it before
    base_url = f"http://{cluster.router.http_address}"
    async with httpx.AsyncClient(base_url=base_url, timeout=60.0) as http:
        first, again = [(await http.post(path, json=body)).json()["usage"] for _ in range(2)]
    assert num_cached(first) == 0
    assert num_cached(again) > 0
    if path == "/v1/messages":  # which counts them apart
        assert again["input_tokens"] + num_cached(again) == first["input_tokens"]


def num_cached(usage: dict[str, Any]) -> int:
    """Tokens of the prompt, by the name that an API has for their number."""
    if "cache_read_input_tokens" in usage:
        return int(usage["cache_read_input_tokens"])
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    return int(details["cached_tokens"])


async def test_errors_are_the_clients_own(http: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await http.completions.create(model="other", prompt=PROMPT)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        await http.completions.create(model="", prompt=PROMPT, temperature=-1)
    assert refused.value.param == "temperature"


async def test_who_goes_away_gives_its_blocks_back(
    http: openai.AsyncOpenAI, grpc: AsyncClient
) -> None:
    async def state_when(is_busy: bool) -> CellState:
        async for [cell] in grpc.watch_cluster():
            if bool(cell.state.num_running) == is_busy:
                return cell.state
        raise AssertionError("watch_cluster goes on for ever")

    idle = await state_when(False)
    endless = {"ignore_eos": True, "return_token_ids": True}
    for is_stream in (True, False):
        calling = asyncio.create_task(
            http.completions.create(
                model="", prompt=PROMPT, max_tokens=400, stream=is_stream, extra_body=endless
            )
        )
        await state_when(True)
        if is_stream:
            await (await calling).close()
        else:
            calling.cancel()
        assert (await state_when(False)).num_free_blocks == idle.num_free_blocks


async def test_a_router_killed_in_mid_stream_costs_no_event(
    http: openai.AsyncOpenAI, grpc: AsyncClient, cluster: Cluster
) -> None:
    patient = http.with_options(max_retries=30)  # until the next router listens at the same port
    await kill_in_time(lambda _: calls_of_a_killed_router(patient, grpc, cluster))


async def calls_of_a_killed_router(
    patient: openai.AsyncOpenAI, grpc: AsyncClient, cluster: Cluster
) -> int:
    extras: dict[str, Any] = {"ignore_eos": True, **OWN}
    token_ids: list[int] = []
    num_events, text, was_killed = 0, "", False
    num_calls = 0
    while num_events < 201:
        num_calls += 1
        with suppress(httpx.HTTPError, openai.APIConnectionError):
            async for chunk in await patient.completions.create(
                model="", prompt=PROMPT, max_tokens=200, stream=True, extra_body=extras
            ):
                [choice] = chunk.choices
                num_events += 1
                text += choice.text
                token_ids += choice.model_extra["token_ids"]
                extras["resume"] = {
                    "id": chunk.id,
                    "seed": choice.model_extra["seed"],
                    "starting_after": num_events,
                    "system_fingerprint": chunk.system_fingerprint,
                }
                if num_events == 20 and not was_killed:
                    was_killed = True
                    os.kill(cluster.router.pid, signal.SIGKILL)
    assert num_events == 201
    seed = extras["resume"]["seed"]
    params = SamplingParams(seed=seed, max_tokens=200, ignore_eos=True)
    whole = await grpc.generate(PROMPT, params)
    assert (text, tuple(token_ids)) == (whole.text, whole.token_ids)
    return num_calls
