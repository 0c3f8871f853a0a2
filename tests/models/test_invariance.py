"""A token's logits are the same bits alone, in a batch, in chunks and recomputed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.factories import (
    CONFIGS,
    FALLBACKS,
    VOCAB_SIZE,
    olmo_longrope_config,
    save_model,
)
from tests.models.driver import Driver, load_runner
from worker_svc.steps.runner import ModelRunner

PROMPT_LENGTH = 45
NUM_TOKENS = 6
TARGET = 1000
FAMILIES = CONFIGS | {name: FALLBACKS[name] for name in ("olmo", "helium")}
FAMILIES["olmo_longrope"] = olmo_longrope_config

pytestmark = [
    pytest.mark.pairwise,
    pytest.mark.parametrize(
        ("name", "dtype"),
        [(name, dtype) for name in FAMILIES for dtype in ("float32", "bfloat16")]
        + [("llama", "float16"), ("gpt2", "float16")]
        + [("llama", "bfloat16 over int8"), ("qwen3", "float16 over int8")]
        + [("gpt2", "float32 over int8"), ("gemma2", "bfloat16 over int8")]
        + [("llama", "bfloat16 as w8a8"), ("mixtral", "float32 as w8a8")],
    ),
]


def load(directory: Path, dtype: str, **options: Any) -> ModelRunner:
    """A runner of a model in a type, over a cache of another or quantised if that is named."""
    dtype, _, kv_cache_dtype = dtype.partition(" over ")
    dtype, _, quantization = dtype.partition(" as ")
    options |= {"kv_cache_dtype": kv_cache_dtype or "auto", "quantization": quantization or "none"}
    return load_runner(directory, dtype=dtype, **options)


@pytest.fixture
def alone(name: str, dtype: str, tmp_path: Path) -> tuple[Path, list[int], list[torch.Tensor]]:
    """The model, the target's prompt and its logits of each step when it runs alone."""
    save_model(tmp_path, FAMILIES[name]())
    rng = np.random.default_rng(2)
    prompt = rng.integers(3, VOCAB_SIZE, PROMPT_LENGTH).tolist()
    driver = Driver(load(tmp_path, dtype=dtype))
    driver.add(TARGET, prompt)
    logits = []
    for _ in range(NUM_TOKENS):
        driver.step()
        logits.append(driver.logits[TARGET])
    return tmp_path, prompt, logits


Alone = tuple[Path, list[int], list[torch.Tensor]]


@pytest.mark.parametrize("block_size", [8, 16])
def test_in_a_batch_of_37(name: str, dtype: str, alone: Alone, block_size: int) -> None:
    directory, prompt, expected = alone
    driver = Driver(load(directory, dtype=dtype, block_size=block_size))
    rng = np.random.default_rng(3)
    for mate in range(36):
        if mate == 20:
            driver.add(TARGET, prompt)
        driver.add(mate, rng.integers(3, VOCAB_SIZE, rng.integers(1, 60)).tolist())
    for step in range(NUM_TOKENS):
        driver.step()
        assert torch.equal(driver.logits[TARGET], expected[step])


def test_joining_decoding_mates_late(name: str, dtype: str, alone: Alone) -> None:
    directory, prompt, expected = alone
    driver = Driver(load(directory, dtype=dtype))
    for mate in range(5):
        driver.add(mate, [3 + mate, 9])
    driver.step()
    driver.add(TARGET, prompt)
    for step in range(NUM_TOKENS):
        driver.step()
        if step == 2:
            driver.release(0)
        assert torch.equal(driver.logits[TARGET], expected[step])


@pytest.mark.parametrize("cuts", [(16, 32), (1, 44), (7, 20)])
def test_chunked_in_3(name: str, dtype: str, alone: Alone, cuts: tuple[int, int]) -> None:
    directory, prompt, expected = alone
    driver = Driver(load(directory, dtype=dtype))
    driver.add(TARGET, prompt)
    first, second = cuts
    assert driver.step({TARGET: first}) == {}
    assert driver.step({TARGET: second - first}) == {}
    for step in range(NUM_TOKENS):
        driver.step()
        assert torch.equal(driver.logits[TARGET], expected[step])


@pytest.mark.parametrize("preempted_after", range(1, NUM_TOKENS))
def test_recomputed_after_preemption(
    name: str, dtype: str, alone: Alone, preempted_after: int
) -> None:
    directory, prompt, expected = alone
    driver = Driver(load(directory, dtype=dtype))
    driver.add(TARGET, prompt)
    for _ in range(preempted_after):
        driver.step()
    tokens = driver.release(TARGET)
    driver.add(0, prompt)
    driver.step()
    driver.add(TARGET, tokens)
    for step in range(preempted_after, NUM_TOKENS):
        driver.step()
        assert torch.equal(driver.logits[TARGET], expected[step])
