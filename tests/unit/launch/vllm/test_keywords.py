"""Keywords and names as vLLM has them, without a cluster."""

from pathlib import Path
from typing import Any

import pytest

from launch.model_names import find_model
from launch.vllm.keywords import translate
from quire import LLM
from quire.contract.engine_options import GIB, EngineKeywords
from quire.contract.errors import ConfigError


def test_keywords_of_vllm_have_their_meaning() -> None:
    taken = {
        "dtype": "half",
        "quantization": None,
        "load_format": "auto",
        "enable_prefix_caching": None,
        "gpu_memory_utilization": 0.5,
        "tensor_parallel_size": 2,
        "trust_remote_code": True,
        "enable_chunked_prefill": True,
        "max_model_len": "8k",
        "max_num_batched_tokens": "4K",
        "kv_cache_memory_bytes": "1G",
    }
    found, idle = translate(taken)
    assert found == {
        "dtype": "float16",
        "load_format": "safetensors",
        "gpu_memory_utilization": 0.5,
        "tensor_parallel_size": 2,
        "max_model_len": 8000,
        "max_num_batched_tokens": 4096,
        "kv_cache_gib": 2**30 / GIB,
    }
    assert idle == ["trust-remote-code"]
    assert found.keys() <= EngineKeywords.__annotations__.keys()


@pytest.mark.parametrize("name", ["awq", "gptq_marlin", "compressed-tensors"])
def test_what_a_checkpoint_stores_is_taken_as_it_is(name: str) -> None:
    assert translate({"quantization": name}) == ({"quantization": "stored"}, [])


@pytest.mark.parametrize(
    ("keyword", "value", "message"),
    [
        ("enable_lora", True, "must not be given: adapters are not served"),
        ("pipeline_parallel_size", 2, "must be 1, got 2"),
        ("enable_chunked_prefill", False, "must be true, as it always is here, got False"),
        ("max_model_len", "8q", "must be an integer, such as 8192, 8k or 8K, got '8q'"),
        ("speculative_config", {"method": "eagle"}, "must have the method ngram"),
        ("distributed_executor_backend", "external", "must be mp, uni or ray, got external"),
        ("hf_overrides", lambda config: config, "must be a mapping, got "),
    ],
)
def test_what_is_not_there_is_refused_by_name(keyword: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{keyword}: {message}"):
        LLM(None if keyword != "hf_overrides" else "a/b", **{keyword: value})


def test_drafts_are_asked_for_in_one_word_or_several() -> None:
    whole = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}
    apart = {"spec_method": "ngram", "spec_tokens": 4}
    drafts = {"speculation": "prompt-lookup", "max_draft_tokens": 4}
    assert translate(whole) == translate(apart) == (drafts, [])


def test_names_of_the_first_release_are_taken() -> None:
    seed = {"use_dummy_weights": True, "worker_use_ray": False, "use_np_weights": False}
    assert translate(seed) == ({"load_format": "dummy"}, [])


def test_a_name_that_no_cache_has_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`quire pull facebook/opt-125m DIR`") as caught:
        find_model("facebook/opt-125m", cache_dir=tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="quire pull a/b@v1 DIR"):
        find_model("a/b", "v1", tmp_path)
    # A cache that has the tokenizer alone has no model.
    snapshot = tmp_path / "models--a--b" / "snapshots" / ("1" * 40)
    snapshot.mkdir(parents=True)
    (tmp_path / "models--a--b" / "refs").mkdir()
    (tmp_path / "models--a--b" / "refs" / "main").write_text("1" * 40)
    (snapshot / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="quire pull a/b DIR"):
        find_model("a/b", cache_dir=tmp_path)
    (snapshot / "model.safetensors").write_bytes(b"")
    assert find_model("a/b", cache_dir=tmp_path) == snapshot
    assert find_model(tmp_path) == tmp_path
    assert find_model("/no/such/directory") == Path("/no/such/directory")
