"""Tokens through the whole cluster equal transformers', whatever company and preemptions."""

import asyncio
import random
from pathlib import Path

import pytest
import torch

from quire import AsyncClient, SamplingParams
from quire.contract.outputs import CellState
from tests.e2e.conftest import StartCluster
from tests.e2e.served_model import VOCAB_SIZE, load_reference, save_served_model
from tests.factories import CONFIGS

NUM_STREAMS = 32
NUM_ALONE = 8
MAX_MODEL_LEN = 128
# 320 slots for 32 streams of up to 124 tokens: most wait, and those that run keep running out, also
# where requests come slowly: each grows by far more than it is admitted with.
TINY_CACHE = {"block_size": 8, "num_gpu_blocks_override": 40}


def requests() -> list[tuple[list[int], int]]:
    """Prompts and output lengths."""
    # Drawn so that the best token of each step is ahead of the next by more than rounding.
    draw = random.Random(21)
    return [
        ([draw.randrange(3, VOCAB_SIZE) for _ in range(draw.randint(1, 60))], draw.randint(32, 64))
        for _ in range(NUM_STREAMS)
    ]


def reference_tokens(directory: Path) -> list[tuple[int, ...]]:
    """Greedy float32 tokens of every request, each generated alone by transformers."""
    model = load_reference(directory)
    model.generation_config.eos_token_id = None
    answers = []
    for prompt, max_tokens in requests():
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_tokens,
            pad_token_id=0,
        )
        answers.append(tuple(output[0, len(prompt) :].tolist()))
    return answers


async def served_tokens(client: AsyncClient, *, together: bool) -> list[tuple[int, ...]]:
    """Tokens of all requests at once, or of the first few one after the other."""

    async def one(prompt: list[int], max_tokens: int) -> tuple[int, ...]:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        return (await client.generate(prompt, params)).token_ids

    if together:
        return await asyncio.gather(*(one(*request) for request in requests()))
    return [await one(*request) for request in requests()[:NUM_ALONE]]


async def cell_state(client: AsyncClient, num_tokens: int = 0) -> CellState:
    """The state of the cell once it is idle and has sampled so many tokens."""
    async for cells in client.watch_cluster():
        state = cells[0].state
        # What was reported before the last request had ended shows less.
        if state.num_running == state.num_waiting == 0 and state.tokens_total >= num_tokens:
            return state
    raise AssertionError("the watch ended")


# Plain, windows and normed heads, experts, learned positions and steps one at a time, ALiBi.
# tests/models holds all families against transformers, without a cluster.
ALWAYS = (("llama", 2), ("gemma3", 2), ("mixtral", 2), ("gpt2", 1), ("bloom", 2))


@pytest.mark.parametrize(
    ("family", "steps_in_flight"),
    [
        *ALWAYS,
        *(
            pytest.param(family, 2, marks=pytest.mark.deep)
            for family in CONFIGS
            if (family, 2) not in ALWAYS
        ),
    ],
)
async def test_greedy_tokens_equal_transformers(
    family: str, steps_in_flight: int, tmp_path: Path, start_cluster: StartCluster
) -> None:
    model = save_served_model(tmp_path / family, family)
    expected = reference_tokens(model)
    assert len(set(expected)) > NUM_STREAMS // 2, "the answers are too alike to prove anything"
    options = {
        "dtype": "float32",
        "max_model_len": MAX_MODEL_LEN,
        "max_steps_in_flight": steps_in_flight,
    }
    async with (
        start_cluster(model, **options, **TINY_CACHE) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        crowded = await served_tokens(client, together=True)
        state = await cell_state(client, sum(map(len, crowded)))
        assert state.preemptions_total > 0, "the cache was too roomy to prove anything"
        assert state.num_free_blocks == state.num_blocks
        alone = await served_tokens(client, together=False)
    assert crowded == expected
    assert alone == expected[:NUM_ALONE]
