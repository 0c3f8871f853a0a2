"""Caches of latent rows, and layers over them, in whatever form a checkpoint has its weights."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig

from quire.contract.engine_options import LoadOptions
from quire.contract.errors import ModelLoadError
from quire.contract.workers import LoadSpec
from tests.factories import deepseek_v2_config, deepseek_v3_config, random_model, save_model
from tests.models.driver import Driver, load_runner
from tests.models.linked_ranks import run_ranks
from tests.models.test_published_formats import FORMATS, logits, save_both
from worker_svc.cache.engine import allocate_caches
from worker_svc.loading.loader import load_model
from worker_svc.parallel.group import ParallelGroup

TEXT = [(13 * i) % 120 + 3 for i in range(60)]
NUM_TOKENS = 6
# Elements of a row: the latent and the rotated key.
ROW = 32 + 8
# Parts of K that hold whole groups.
WIDE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 256,
    "v_head_dim": 64,
    "q_lora_rank": 64,
}


@pytest.fixture(params=["deepseek_v2", "deepseek_v3"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    make = {"deepseek_v2": deepseek_v2_config, "deepseek_v3": deepseek_v3_config}[request.param]
    return save_model(tmp_path, make())


def continuation(driver: Driver) -> tuple[list[int], torch.Tensor]:
    for _ in range(NUM_TOKENS):
        driver.step()
    return driver.tokens[0], driver.logits[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_are_swapped(model: Path, dtype: str) -> None:
    found = []
    for is_swapped in (False, True):
        driver = Driver(load_runner(model, dtype=dtype, swap_space_bytes=2**20))
        driver.add(0, TEXT)
        driver.step()
        if is_swapped:
            driver.swap(0)
        found.append(continuation(driver))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_a_block_is_as_many_bytes_as_it_has_rows(model: Path) -> None:
    runner = load_runner(model, dtype="bfloat16", block_size=16, num_blocks=5)
    engine = runner.cache_engine
    each = 3 * 16 * ROW * 2  # layers, rows, bytes of an element
    assert engine.block_bytes.block_bytes == each
    assert engine.device_bytes == 5 * each
    assert sum(cache.nbytes for layer in engine.caches.stored for cache in layer) == 5 * each


def test_another_worker_continues_over_the_bytes_of_blocks(model: Path) -> None:
    """As it does over blocks that it fetched: each holds the rows of all layers, once."""
    expected = Driver(load_runner(model, dtype="bfloat16"))
    expected.add(0, TEXT)
    own = Driver(load_runner(model, dtype="bfloat16"))
    own.add(0, TEXT)
    assert own.step({0: 48}) == expected.step({0: 48}) == {}
    source, target = (each.runner.cache_engine for each in (expected, own))
    for caches in target.caches.stored:
        for cache in caches:
            cache.zero_()
    # Both drivers hand out the same blocks.
    blocks = [block for block in range(source.num_blocks) if any(source.block_bytes.read(block))]
    assert len(blocks) == 3
    target.block_bytes.write(blocks, [source.block_bytes.read(block) for block in blocks])
    for found, wanted in zip(continuation(own), continuation(expected), strict=True):
        assert torch.equal(torch.as_tensor(found), torch.as_tensor(wanted))


def test_every_rank_holds_whole_rows_and_its_share_of_heads(model: Path) -> None:
    def load(parallel: ParallelGroup) -> tuple[tuple[int, ...], int]:
        loaded = load_model(LoadSpec(str(model)), "test", parallel)
        return tuple(allocate_caches(loaded, 16, 4).stored[0][0].shape), loaded.weight_bytes

    shape, whole = load(ParallelGroup())
    assert shape == (4, 1, 16, ROW)
    for own_shape, own_bytes in run_ranks(2, load):
        assert own_shape == shape
        # Latents are made on every rank.
        assert whole / 2 < own_bytes < 0.7 * whole


def test_a_cache_of_int8_is_refused(model: Path) -> None:
    """One of float8 is refused on a GPU, which could have it: tests/emu/test_gpu_latent.py."""
    words = (
        "kv_cache_dtype: must be auto for DeepseekV.ForCausalLM, whose values are part of its "
        "cached keys, got 'int8'"
    )
    with pytest.raises(ModelLoadError, match=words):
        load_runner(model, kv_cache_dtype="int8")


@pytest.mark.parametrize("make", [deepseek_v2_config, deepseek_v3_config])
@pytest.mark.parametrize("number", ["0", "null"])
def test_there_may_be_no_shared_experts(
    make: Callable[[], PreTrainedConfig], number: str, tmp_path: Path
) -> None:
    """As where they add nothing."""
    stored = random_model(make())
    with torch.no_grad():
        for name, parameter in stored.named_parameters():
            if name.endswith("shared_experts.down_proj.weight"):
                parameter.zero_()
    stored.save_pretrained(tmp_path)
    expected = Driver(load_runner(tmp_path))
    tokens = expected.generate([TEXT], NUM_TOKENS)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "n_shared_experts": json.loads(number)}))
    weights = load_file(tmp_path / "model.safetensors")
    left = {name: each for name, each in weights.items() if "shared_experts" not in name}
    save_file(left, tmp_path / "model.safetensors", {"format": "pt"})
    found = Driver(load_runner(tmp_path))
    assert found.generate([TEXT], NUM_TOKENS) == tokens
    assert torch.equal(found.logits[0], expected.logits[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_float8_blocks_give_the_logits_of_what_they_stand_for(dtype: str, tmp_path: Path) -> None:
    """As DeepSeek-V3 is published, kv_b_proj among them, whether layers keep them or not."""
    stored, plain = save_both(tmp_path, FORMATS["fp8 in blocks"], deepseek_v3_config, **WIDE)
    expected = logits(plain, dtype=dtype)
    assert torch.equal(logits(stored, dtype=dtype), expected)
    assert torch.equal(logits(stored, dtype=dtype, quantization="stored"), expected)


def test_integers_are_kept_where_layers_have_them(tmp_path: Path) -> None:
    stored, plain = save_both(tmp_path, FORMATS["awq"], deepseek_v2_config, **WIDE)
    expected = logits(plain)
    assert torch.equal(logits(stored, quantization="stored"), expected)
    held = {}
    for method in ("none", "stored"):
        spec = LoadSpec(str(stored), LoadOptions(dtype="float32", quantization=method))
        held[method] = load_model(spec, "test", ParallelGroup()).weight_bytes
    assert held["stored"] < 0.4 * held["none"]
