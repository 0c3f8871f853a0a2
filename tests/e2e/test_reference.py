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
# where requests come slowly, for two tokens of three are outputs, which come after the admission.
TINY_CACHE = {"block_size": 8, "num_gpu_blocks_override": 40}
# Of the largest logit: sums in another order differ by less.
ROUNDING = 1e-5

# A prompt, and its greedy float32 tokens, generated alone by transformers.
Request = tuple[list[int], tuple[int, ...]]


def draw_requests(directory: Path) -> list[Request]:
    """Requests in each of whose steps one token is ahead of the others by more than rounding."""
    model = load_reference(directory)
    model.generation_config.eos_token_id = None
    draw = random.Random(21)
    requests: list[Request] = []
    while len(requests) < NUM_STREAMS:
        prompt = [draw.randrange(3, VOCAB_SIZE) for _ in range(draw.randint(1, 60))]
        ids = torch.tensor([prompt])
        answer = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=draw.randint(32, 64),
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        logits = torch.cat(answer.logits)
        best, second = logits.topk(2).values.unbind(-1)
        if (best - second).min() > ROUNDING * logits.abs().max():
            requests.append((prompt, tuple(answer.sequences[0, len(prompt) :].tolist())))
    return requests


async def served_tokens(client: AsyncClient, request: Request) -> tuple[int, ...]:
    prompt, tokens = request
    params = SamplingParams(temperature=0.0, max_tokens=len(tokens), ignore_eos=True)
    return (await client.generate(prompt, params)).token_ids


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
    requests = draw_requests(model)
    expected = [tokens for _, tokens in requests]
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
        crowded = await asyncio.gather(*(served_tokens(client, each) for each in requests))
        state = await cell_state(client, sum(map(len, crowded)))
        assert state.preemptions_total > 0, "the cache was too roomy to prove anything"
        assert state.num_free_blocks == state.num_blocks
        alone = [await served_tokens(client, each) for each in requests[:NUM_ALONE]]
    assert crowded == expected
    assert alone == expected[:NUM_ALONE]
