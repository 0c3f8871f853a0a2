"""Every sampling mode gives one set of tokens, whatever path the request takes."""

import asyncio
import random
from pathlib import Path

import pytest

from quire import AsyncClient, SamplingParams
from quire.outputs import TokenLogprobs
from tests.e2e.conftest import StartCluster
from tests.e2e.served_model import VOCAB_SIZE, save_served_model
from tests.e2e.test_reference import TINY_CACHE, cell_state

STOPS = tuple("aeiot1")
MODES = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=24),
    "sampled": SamplingParams(seed=5, max_tokens=24),
    "filtered": SamplingParams(seed=6, top_k=40, top_p=0.9, min_p=0.01, max_tokens=24),
    "penalised": SamplingParams(
        temperature=0.7,
        seed=7,
        presence_penalty=0.8,
        frequency_penalty=0.6,
        repetition_penalty=1.3,
        max_tokens=24,
    ),
    "reported": SamplingParams(temperature=0.9, seed=12, logprobs=3, max_tokens=24),
    "steered": SamplingParams(
        seed=8,
        logit_bias={9: 4.0, 10: -100.0},
        allowed_token_ids=tuple(range(5, 90)),
        max_tokens=24,
    ),
    "stopped": SamplingParams(seed=9, stop=STOPS, max_tokens=24),
    "at_least": SamplingParams(seed=10, stop=STOPS, min_tokens=12, max_tokens=24),
}
SMALL_STEPS = ("--max-num-batched-tokens", "16")
PATHS = {
    "recompute": TINY_CACHE,
    "chunked": SMALL_STEPS,
    "recompute, chunked, no run-ahead": (*TINY_CACHE, *SMALL_STEPS, "--max-steps-in-flight", "1"),
}
Answer = tuple[tuple[int, ...], str, tuple[TokenLogprobs, ...]]
Answers = dict[tuple[str, int], Answer]


def prompts() -> list[list[int]]:
    draw = random.Random(4)
    return [[draw.randrange(3, VOCAB_SIZE) for _ in range(n)] for n in (1, 20, 37, 60)]


async def answers(client: AsyncClient, *, together: bool) -> Answers:
    """Tokens, text and logprobs of every mode on every prompt."""

    async def one(mode: str, index: int) -> Answer:
        completion = await client.generate(prompts()[index], MODES[mode])
        return completion.token_ids, completion.text, completion.logprobs

    keys = [(mode, index) for mode in MODES for index in range(len(prompts()))]
    if together:
        return dict(zip(keys, await asyncio.gather(*(one(*key) for key in keys)), strict=True))
    return {key: await one(*key) for key in keys}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_served_model(tmp_path_factory.mktemp("model") / "llama", "llama")


async def test_one_set_of_tokens_per_mode(model: Path, start_cluster: StartCluster) -> None:
    common = ("--dtype", "float32", "--max-model-len", "128")
    async with (
        start_cluster(model, *common, "--no-enable-prefix-caching") as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        expected = await answers(client, together=False)
        assert (await cell_state(client)).prefix_cache_hits_total == 0
    async with (
        start_cluster(model, *common) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        assert await answers(client, together=True) == expected
        before = await cell_state(client)
        assert await answers(client, together=True) == expected, "prefix hit"
        after = await cell_state(client)
    hits = after.prefix_cache_hits_total - before.prefix_cache_hits_total
    # All full blocks of 16 of the prompts of 20, 37 and 60 tokens, in every mode.
    assert hits >= (16 + 32 + 48) * len(MODES)
    for name, options in PATHS.items():
        async with (
            start_cluster(model, *common, *options) as cluster,
            AsyncClient(cluster.router.address) as client,
        ):
            assert await answers(client, together=True) == expected, name
            if "recompute" in name:
                assert (await cell_state(client)).preemptions_total > 0, name

    for index in range(len(prompts())):
        tokens = {mode: expected[mode, index][0] for mode in MODES}
        assert len(set(tokens.values())) == len(MODES), "two modes gave the same tokens"
        assert all(5 <= token < 90 for token in tokens["steered"])
        assert len(tokens["at_least"]) >= 12
        assert not expected["sampled", index][2]
        reported = expected["reported", index][2]
        assert [position.token_ids[0] for position in reported] == list(tokens["reported"])
        assert all(len(position.logprobs) == 4 for position in reported)
    assert min(len(expected["stopped", index][0]) for index in range(len(prompts()))) < 12
