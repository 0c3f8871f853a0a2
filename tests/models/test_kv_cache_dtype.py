"""Caches of int8: near what the model's own type gives, and refused where they are not served."""

from pathlib import Path

import pytest

from bench.kv_quality import divergence
from quire.contract.errors import ModelLoadError
from tests.factories import CONFIGS, save_model
from tests.models.driver import Driver, load_runner

TEXT = [(13 * i) % 120 + 3 for i in range(60)]


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "bloom", "gptj", "mixtral"])
def test_logits_are_near(family: str, tmp_path: Path) -> None:
    save_model(tmp_path, CONFIGS[family]())
    logits = []
    for kv_cache_dtype in ("auto", "int8"):
        driver = Driver(load_runner(tmp_path, dtype="float32", kv_cache_dtype=kv_cache_dtype))
        driver.add(0, TEXT)
        driver.step()
        logits.append(driver.logits[0])
    # Most are far nearer; another expert now and then is the worst.
    assert 0 < divergence(*(each[None] for each in logits)) < 0.05


def test_blocks_are_swapped_as_they_are(tmp_path: Path) -> None:
    save_model(tmp_path, CONFIGS["llama"]())
    tokens = []
    for is_swapped in (False, True):
        options = {"kv_cache_dtype": "int8", "swap_space_bytes": 2**20}
        driver = Driver(load_runner(tmp_path, dtype="bfloat16", **options))
        driver.add(0, TEXT)
        driver.step()
        if is_swapped:
            driver.swap(0)
        for _ in range(5):
            driver.step()
        tokens.append(driver.tokens[0])
    assert tokens[0] == tokens[1]


def test_what_the_device_does_not_serve_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, CONFIGS["llama"]())
    with pytest.raises(
        ModelLoadError, match="kv_cache_dtype: must be one of auto, int8 on cpu, got 'fp8'"
    ):
        load_runner(tmp_path, kv_cache_dtype="fp8")
