"""Two ranks, each with its share of every layer, give the tokens of one."""

from pathlib import Path

import pytest
import torch

from tests.factories import CONFIGS, VARIANTS, save_model
from tests.models.driver import Driver, load_runner
from tests.models.linked_ranks import run_ranks
from worker_svc.parallel import ParallelGroup

PROMPTS = ([5, 9, 77, 30, 31, 8, 100, 12, 60, 3], [4, 128])
NUM_TOKENS = 12
# Shares that the plain configurations do not have: a key/value head that both ranks hold, groups
# of a fused layer, slopes of a number of heads that is not a power of two.
VARIANTS_TOO = ("llama_mqa_gelu", "falcon_groups", "falcon_alibi", "mpt_clipped")


def generate(directory: Path, parallel: ParallelGroup) -> tuple[list[list[int]], torch.Tensor]:
    """Return the tokens of the prompts, and the logits of the first one's last step."""
    driver = Driver(load_runner(directory, parallel=parallel))
    return driver.generate(PROMPTS, NUM_TOKENS), driver.logits[0]


@pytest.mark.parametrize("name", [*CONFIGS, *VARIANTS_TOO])
def test_two_ranks_give_the_tokens_of_one(name: str, tmp_path: Path) -> None:
    save_model(tmp_path, VARIANTS[name])
    tokens, logits = generate(tmp_path, ParallelGroup())
    ranks = run_ranks(2, lambda parallel: generate(tmp_path, parallel))
    for rank_tokens, rank_logits in ranks:
        assert rank_tokens == tokens
        assert torch.allclose(rank_logits, logits, rtol=1e-3, atol=1e-3)
