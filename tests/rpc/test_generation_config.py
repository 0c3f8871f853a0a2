"""Defaults of sampling parameters: filled in once, reported, and the same wherever it goes on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire import SamplingParams
from quire.contract.outputs import Started
from quire.contract.sampling_params import FILLED_IN
from tests.fakes.fake_scheduler import MODEL, FakeScheduler
from tests.rpc.http_setup import http_router
from tests.rpc.router_setup import PROMPT, running_router

PATHS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": PROMPT},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}]},
    "/v1/messages": {"messages": [{"role": "user", "content": PROMPT}]},
    "/v1/responses": {"input": PROMPT},
}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
CONFIG = {"temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": 0.25, "repetition_penalty": 1.5}
OTHER = {"temperature": 0.25, "top_p": 0.5}
LIMIT = {"max_tokens": 6}


def fake_cell() -> FakeScheduler:
    return FakeScheduler(model=replace(MODEL, numerics_id="5f7a"))


def with_config(directory: Path, config: dict[str, float]) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "generation_config.json").write_text(json.dumps(config))
    return directory


def computed(fake: FakeScheduler) -> list[dict[str, float]]:
    """What was to be computed of those of CONFIG, by request."""
    return [
        {name: getattr(each.params, name) for name in CONFIG if each.params.HasField(name)}
        for each in fake.submitted
    ]


@pytest.mark.parametrize("path", PATHS)
async def test_what_a_body_leaves_open_is_filled_in(tmp_path: Path, path: str) -> None:
    limit = {"max_output_tokens": 6} if path == "/v1/responses" else LIMIT
    body, fake = {**PATHS[path], **limit}, fake_cell()
    settings = {"chat_template": TEMPLATE}
    async with http_router(with_config(tmp_path, CONFIG), fake, **settings) as setup:
        answer = (await setup.post(path, body)).json()
        # Given is given, also where it is the default of the API.
        await setup.post(path, {**body, "temperature": 1.0, "top_k": 0, "min_p": 0.0})
        await setup.post(path, {**body, "temperature": None})
    first, second, third = computed(fake)
    assert first == third == CONFIG
    del second["min_p"]
    assert second == {"temperature": 1.0, "top_p": 0.75, "repetition_penalty": 1.5}
    shown = answer["system_fingerprint"].split(".", 2)[2]
    assert dict(pair.split("=") for pair in shown.split(",")) == {
        name: repr(value) for name, value in CONFIG.items()
    }


async def test_none_are_filled_in_where_none_are_wanted(tmp_path: Path) -> None:
    fake, body = fake_cell(), {**PATHS["/v1/completions"], **LIMIT}
    directory = with_config(tmp_path, CONFIG)
    async with http_router(directory, fake, generation_config="vllm") as setup:
        answer = (await setup.post("/v1/completions", body)).json()
    assert answer["system_fingerprint"].count(".") == 1
    assert computed(fake)[0]["temperature"] == 1.0
    override = {"generation_config": "vllm", "override_generation_config": '{"top_k": 7}'}
    async with http_router(directory, fake, **override) as setup:
        await setup.post("/v1/completions", body)
    assert computed(fake)[1]["top_k"] == 7


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_goes_on_with_the_defaults_of_its_beginning(
    tmp_path: Path, path: str
) -> None:
    """At a router that has others."""
    body, settings = {**PATHS[path], **LIMIT}, {"chat_template": TEMPLATE}
    fake = fake_cell()
    async with http_router(with_config(tmp_path / "a", CONFIG), fake, **settings) as setup:
        whole = await setup.events(path, body)
    first, created = whole[0].data, 1000  # of a stream that began long ago
    resume = {name: first[name] for name in ("id", "system_fingerprint")}
    resume |= {"seed": first["choices"][0]["seed"], "created": created, "starting_after": 2}
    async with http_router(with_config(tmp_path / "b", OTHER), fake, **settings) as setup:
        rest = await setup.events(path, {**body, "resume": resume})
        await setup.post(path, body)
    left = [event.data | {"created": created} for event in whole[2:-1]]
    assert [event.data for event in rest[:-1]] == left
    begun, gone_on, new = computed(fake)
    assert begun == gone_on == CONFIG
    assert new["temperature"] == OTHER["temperature"]


async def test_a_client_of_grpc_is_told_and_sends_them_again(tmp_path: Path) -> None:
    fake = fake_cell()
    params = SamplingParams(max_tokens=6, left_open=frozenset(FILLED_IN) - {"max_tokens"})
    async with running_router(with_config(tmp_path, CONFIG), fake) as setup:
        stream = setup.client.stream(PROMPT, params)
        started = await anext(stream)
        assert isinstance(started, Started)
        assert started.sampling_defaults == CONFIG
        async for _ in stream:
            pass
        # Its own parameters are whole, and so they stay.
        await setup.client.generate(PROMPT, SamplingParams(max_tokens=6))
    first, second = computed(fake)
    assert first == CONFIG
    assert (second["temperature"], second["top_p"]) == (1.0, 1.0)
