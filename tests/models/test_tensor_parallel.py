"""Ranks, each with its share of every layer, give the tokens of one."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from quire.contract.errors import ModelLoadError
from quire.contract.workers import LoadSpec
from tests.factories import CONFIGS, llama_config, save_model
from tests.models.driver import Driver, load_runner
from tests.models.linked_ranks import run_ranks
from tests.variants import VARIANTS
from worker_svc.cache import profile
from worker_svc.cache.engine import allocate_caches
from worker_svc.loading.loader import load_model
from worker_svc.parallel.group import ParallelGroup

PROMPTS = ([5, 9, 77, 30, 31, 8, 100, 12, 60, 3], [4, 128])
NUM_TOKENS = 12
# Shares that the plain configurations do not have: a key/value head that both ranks hold, groups
# of a fused layer, slopes of a number of heads that is not a power of two, norms of heads.
VARIANTS_TOO = (
    "llama_mqa_gelu",
    "falcon_groups",
    "falcon_alibi",
    "mpt_clipped",
    "stablelm_parallel_qk_norm",
    "olmo2_mqa_biased",
    "cohere_qk_norm",
)
SIX_HEADS = ("falcon_alibi", "mpt_clipped")
NAMES = (*CONFIGS, *VARIANTS_TOO)


def generate(
    directory: Path, parallel: ParallelGroup, *, dtype: str, quantization: str = "none"
) -> tuple[list[list[int]], torch.Tensor]:
    """Return the tokens of the prompts, and the logits of the first one's last step."""
    runner = load_runner(directory, parallel=parallel, dtype=dtype, quantization=quantization)
    driver = Driver(runner)
    return driver.generate(PROMPTS, NUM_TOKENS), driver.logits[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_have_the_same_bits_on_1_2_and_4_ranks(
    name: str, dtype: str, tmp_path: Path
) -> None:
    """In bf16 a sum in another order would change the last bits at once, and tokens soon."""
    save_model(tmp_path, VARIANTS[name])

    def run(parallel: ParallelGroup) -> tuple[list[list[int]], torch.Tensor]:
        return generate(tmp_path, parallel, dtype=dtype)

    tokens, logits = run(ParallelGroup())
    for size in (2,) if name in SIX_HEADS else (2, 4):
        for rank_tokens, rank_logits in run_ranks(size, run):
            assert rank_tokens == tokens
            assert torch.equal(rank_logits, logits)


@pytest.mark.parametrize("quantization", ["none", "w8a8", "w4"])
def test_logits_have_the_same_bits_on_8_ranks(quantization: str, tmp_path: Path) -> None:
    """The largest number there is: each rank has one head and one part of K."""
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
    save_model(tmp_path, llama_config(intermediate_size=512, **sizes))

    def run(parallel: ParallelGroup) -> tuple[list[list[int]], torch.Tensor]:
        return generate(tmp_path, parallel, dtype="bfloat16", quantization=quantization)

    tokens, logits = run(ParallelGroup())
    for rank_tokens, rank_logits in run_ranks(8, run):
        assert rank_tokens == tokens
        assert torch.equal(rank_logits, logits)


def test_each_rank_holds_its_share_of_the_weights(tmp_path: Path) -> None:
    save_model(tmp_path, VARIANTS["llama"])

    def weight_bytes(parallel: ParallelGroup) -> int:
        return load_model(LoadSpec(str(tmp_path)), "test", parallel).weight_bytes

    whole = weight_bytes(ParallelGroup())
    for size in (2, 4):
        shares = run_ranks(size, weight_bytes)
        # Norms, and a key/value head that two ranks share, are held more than once.
        assert whole / size <= max(shares) < 1.2 * whole / size


def test_ranks_stop_warming_up_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their clocks differ: the one of a slower rank must not decide for it alone."""
    save_model(tmp_path, VARIANTS["llama"])
    clock = threading.local()

    def monotonic() -> float:
        clock.calls = getattr(clock, "calls", 0) + 1
        return 1e9 if clock.calls > clock.limit else 0.0

    def warm(parallel: ParallelGroup) -> int:
        clock.limit = 3 if parallel.rank == 0 else 1
        loaded = load_model(LoadSpec(str(tmp_path)), "test", parallel)
        profile.warm_up(loaded, allocate_caches(loaded, 16, 1), 16)
        return int(clock.calls)

    monkeypatch.setattr(profile, "time", SimpleNamespace(monotonic=monotonic))
    assert run_ranks(2, warm) == [4, 4]


@pytest.mark.parametrize("size", [3, 8])
def test_sizes_that_do_not_divide_the_heads_are_refused(size: int, tmp_path: Path) -> None:
    save_model(tmp_path, VARIANTS["llama"])
    words = rf"^tensor_parallel_size: must divide num_attention_heads \(4\), got {size}$"
    with pytest.raises(ModelLoadError, match=words):
        load_model(LoadSpec(str(tmp_path)), "test", ParallelGroup(size - 1, size))


def test_there_is_a_largest_number_of_ranks(tmp_path: Path) -> None:
    sizes = {"hidden_size": 96, "num_attention_heads": 12, "num_key_value_heads": 12}
    sizes["intermediate_size"] = 96
    save_model(tmp_path, llama_config(**sizes))
    words = "tensor_parallel_size: must divide 8, .* input features of o_proj .* got 12"
    with pytest.raises(ModelLoadError, match=words):
        load_model(LoadSpec(str(tmp_path)), "test", ParallelGroup(0, 12))
