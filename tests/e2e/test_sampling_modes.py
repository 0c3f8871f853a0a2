"""Every sampling mode gives one set of tokens, whatever path the request takes."""

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from quire import AsyncClient, SamplingParams
from quire.contract.outputs import TokenLogprobs
from tests.e2e.conftest import running_cluster
from tests.e2e.served_model import VOCAB_SIZE, save_served_model
from tests.e2e.test_reference import TINY_CACHE, cell_state

STOPS = tuple("aeiot1")
BAD_WORDS = tuple("abcdefghijklmnopqrst")
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
    "n": SamplingParams(n=4, seed=13, stop=STOPS[:2], max_tokens=24),
    "best_of": SamplingParams(n=2, best_of=4, seed=14, logprobs=1, max_tokens=24),
    "beam": SamplingParams(
        n=2, best_of=4, use_beam_search=True, temperature=0.0, logprobs=2, max_tokens=24
    ),
    "censored": SamplingParams(seed=15, bad_words=BAD_WORDS, max_tokens=24),
}
PROMPT_LENGTHS = (1, 20, 37, 60)
COMMON = {"dtype": "float32", "max_model_len": 128}
SMALL_STEPS = {"max_num_batched_tokens": 16}
NO_RUN_AHEAD = {"max_steps_in_flight": 1}
PATHS: dict[str, dict[str, object]] = {
    "recompute": {**TINY_CACHE, "preemption_mode": "recompute"},
    "swap": {**TINY_CACHE, "preemption_mode": "swap"},
    "chunked": SMALL_STEPS,
    "no run-ahead": NO_RUN_AHEAD,
    "recompute, chunked, no run-ahead": {
        **TINY_CACHE,
        **SMALL_STEPS,
        **NO_RUN_AHEAD,
        "preemption_mode": "recompute",
    },
    "swap, chunked, no prefix cache": {
        **TINY_CACHE,
        **SMALL_STEPS,
        "enable_prefix_caching": False,
        "preemption_mode": "swap",
    },
}
# Tokens, text, log-probabilities and their sum of each of the n outputs.
Answer = list[tuple[tuple[int, ...], str, tuple[TokenLogprobs, ...], float | None]]
Answers = dict[tuple[str, int], Answer]


def prompts() -> list[list[int]]:
    draw = random.Random(4)
    return [[draw.randrange(3, VOCAB_SIZE) for _ in range(n)] for n in PROMPT_LENGTHS]


async def answers(client: AsyncClient, *, together: bool) -> Answers:
    """What every mode gives on every prompt."""

    async def one(mode: str, index: int) -> Answer:
        completions = await client.generate_all(prompts()[index], MODES[mode])
        return [
            (each.token_ids, each.text, each.logprobs, each.cumulative_logprob)
            for each in completions
        ]

    keys = [(mode, index) for mode in MODES for index in range(len(prompts()))]
    if together:
        return dict(zip(keys, await asyncio.gather(*(one(*key) for key in keys)), strict=True))
    return {key: await one(*key) for key in keys}


@dataclass(frozen=True, slots=True)
class Reference:
    """What every mode gives alone, and the tokens that "censored" must never give."""

    answers: Answers
    banned: set[int]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_served_model(tmp_path_factory.mktemp("model") / "llama", "llama")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(model: Path) -> Reference:
    async with (
        running_cluster(model, **COMMON, enable_prefix_caching=False) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        alone = await answers(client, together=False)
        assert (await cell_state(client, 1)).prefix_cache_hits_total == 0
        banned = {
            token
            for word in BAD_WORDS
            for token in await client.tokenize(word, add_special_tokens=False)
        }
    return Reference(alone, banned)


async def test_company_and_prefix_hits_change_no_token(model: Path, expected: Reference) -> None:
    async with (
        running_cluster(model, **COMMON) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        assert await answers(client, together=True) == expected.answers
        before = await cell_state(client, 1)
        assert await answers(client, together=True) == expected.answers, "prefix hit"
        after = await cell_state(client, before.tokens_total + 1)
    hits = after.prefix_cache_hits_total - before.prefix_cache_hits_total
    # All full blocks of 16 of the prompts of 20, 37 and 60 tokens, in every mode.
    assert hits >= (16 + 32 + 48) * len(MODES)


# Those of several things at once always run.
@pytest.mark.parametrize(
    "name", [name if "," in name else pytest.param(name, marks=pytest.mark.deep) for name in PATHS]
)
async def test_no_path_changes_a_token(name: str, model: Path, expected: Reference) -> None:
    async with (
        running_cluster(model, **COMMON, **PATHS[name]) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        assert await answers(client, together=True) == expected.answers
        state = await cell_state(client, 1)
    if "recompute" in name:
        assert state.recomputed_tokens_total > 0
        assert state.swapped_out_blocks_total == 0
    if "swap" in name:
        assert state.swapped_in_blocks_total > 0
    assert state.num_free_blocks == state.num_blocks
    assert state.num_free_host_blocks == state.num_host_blocks
    assert state.num_blocks_saved == 0


@pytest.mark.parametrize("index", range(len(PROMPT_LENGTHS)))
def test_each_mode_does_what_its_name_promises(index: int, expected: Reference) -> None:
    every = {mode: expected.answers[mode, index] for mode in MODES}
    first = {mode: answer[0] for mode, answer in every.items()}
    tokens = {mode: answer[0] for mode, answer in first.items()}
    assert len(set(tokens.values())) == len(MODES), "two modes gave the same tokens"
    assert all(5 <= token < 90 for token in tokens["steered"])
    assert len(tokens["at_least"]) >= 12
    assert not first["sampled"][2]
    for mode, num_top in (("reported", 3), ("best_of", 1), ("beam", 2)):
        for token_ids, _, logprobs, total in every[mode]:
            assert [position.token_ids[0] for position in logprobs] == list(token_ids)
            assert all(len(position.logprobs) == 1 + num_top for position in logprobs)
            assert total == pytest.approx(sum(each.logprobs[0] for each in logprobs))
    assert expected.banned
    assert not expected.banned & set(tokens["censored"])
    assert [len(every[mode]) for mode in ("n", "best_of", "beam")] == [4, 2, 2]
    assert len({answer[0] for answer in every["n"]}) == 4
    totals = [answer[3] for answer in every["best_of"]]
    assert totals == sorted(totals, reverse=True)


def test_stop_strings_end_some_output_early(expected: Reference) -> None:
    lengths = [len(expected.answers["stopped", i][0][0]) for i in range(len(PROMPT_LENGTHS))]
    assert min(lengths) < 12
