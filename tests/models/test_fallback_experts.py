"""Models of the fallback with experts keep every bit in company and after a prefix."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models.driver import Driver, load_runner
from tools.architectures import tiny_config
from worker_svc.models.small_model import random_model

# A form of each: gates of a single feature; a router in float32, whatever the model's type; biases,
# weights stored the other way round and interleaved; no biases; groups of experts, one of which is
# chosen; and the two that pass the experts interface by, with matrices of all experts in one and
# with experts of attention.
FORMS = ("qwen2_moe", "dots1", "gpt_oss", "aria_text", "axk1", "dbrx", "jetmoe")
# Without MiniMax-M3: the blocks that it chooses are refused, see test_fallback_windows.py.
OTHERS = (
    *("afmoe", "beam", "cohere2_moe", "ernie4_5_moe", "exaone_moe", "flex_olmo", "flint"),
    *("glm4_moe", "glm4_moe_lite", "granitemoe", "granitemoe_swa", "granitemoeshared"),
    *("hunyuan_v1_moe", "hy_v3", "kolibri1", "laguna", "mellum", "minimax_m2"),
    *("olmoe", "phimoe", "solar_open"),
)
TARGET = 1000
NUM_TOKENS = 4
VOCAB_SIZE = 150


def logits_of(driver: Driver) -> list[torch.Tensor]:
    """Return the target's logits of NUM_TOKENS steps."""
    found = []
    for _ in range(NUM_TOKENS):
        driver.step()
        found.append(driver.logits[TARGET])
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", [*FORMS, *(pytest.param(name, marks=pytest.mark.deep) for name in OTHERS)]
)
def test_bits_alone_are_those_in_company_and_after_a_prefix(
    name: str, dtype: str, tmp_path: Path
) -> None:
    random_model(tiny_config(name)).save_pretrained(tmp_path)
    rng = np.random.default_rng(2)
    prompt = rng.integers(3, VOCAB_SIZE, 45).tolist()
    driver = Driver(load_runner(tmp_path, dtype=dtype))
    driver.add(TARGET, prompt)
    alone = logits_of(driver)
    driver.release(TARGET)
    for mate in range(24):
        if mate == 14:
            driver.add(TARGET, prompt)
        driver.add(mate, rng.integers(3, VOCAB_SIZE, rng.integers(1, 60)).tolist())
    in_company = logits_of(driver)
    for sequence in list(driver.tokens):
        driver.release(sequence)
    driver.add(TARGET, prompt)
    driver.step({TARGET: 16})
    driver.step({TARGET: 17})
    after_a_prefix = logits_of(driver)
    for step, expected in enumerate(alone):
        assert torch.equal(in_company[step], expected), step
        assert torch.equal(after_a_prefix[step], expected), step
