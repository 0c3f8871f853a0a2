"""Contexts of tens of thousands of tokens: the same logits in any chunks, recomputed and moved."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from tests.factories import VOCAB_SIZE, save_model
from tests.models.driver import Driver, load_runner

CHUNK = 4096
NUM_TOKENS = 3


def answer(
    directory: Path, dtype: str, prompt: list[int], chunk: int
) -> tuple[list[int], list[torch.Tensor]]:
    """Return tokens, and logits of each step, of a prompt computed in chunks beside another."""
    num_blocks = -(-len(prompt) // 16) + 16
    driver = Driver(load_runner(directory, dtype=dtype, num_blocks=num_blocks))
    driver.add(0, prompt)
    driver.add(1, [9, 5, 60])
    logits = []
    left = len(prompt)
    while left > 0:
        count = min(chunk, left)
        left -= count
        # The other one decodes all the while.
        driver.step({0: count, 1: 3 if len(driver.tokens[1]) == 3 else 1})
    for _ in range(NUM_TOKENS):
        logits.append(driver.logits[0])
        driver.step({0: 1})
    return driver.tokens[0][len(prompt) :], logits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("length", [33_000, pytest.param(131_000, marks=pytest.mark.deep)])
def test_chunks_and_recomputation(length: int, dtype: str, tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=131_072,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    )
    save_model(tmp_path, config)
    prompt = np.random.default_rng(0).integers(3, VOCAB_SIZE, length).tolist()
    tokens, logits = answer(tmp_path, dtype, prompt, CHUNK)
    # As after a crash: the tokens so far belong to what is computed, and in other chunks.
    recomputed, later_logits = answer(tmp_path, dtype, [*prompt, tokens[0]], CHUNK - 1000)
    assert recomputed[: NUM_TOKENS - 1] == tokens[1:NUM_TOKENS]
    for before, after in zip(logits[1:], later_logits, strict=False):
        assert torch.equal(before, after)
