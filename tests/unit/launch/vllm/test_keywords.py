"""Keywords and names as vLLM has them, without a cluster."""

from pathlib import Path

import pytest

from launch.model_names import find_model
from launch.vllm_keywords import translate
from quire import LLM
from quire.contract.engine_options import EngineKeywords
from quire.contract.errors import ConfigError


def test_keywords_of_vllm_have_their_meaning_or_are_refused_by_name() -> None:
    taken = {
        "dtype": "half",
        "quantization": None,
        "load_format": "auto",
        "enable_prefix_caching": None,
        "gpu_memory_utilization": 0.5,
        "tensor_parallel_size": 2,
        "trust_remote_code": False,
        "tokenizer": "a/b",
        "enable_chunked_prefill": True,
    }
    found = translate(taken, "a/b")
    assert found == {
        "dtype": "float16",
        "quantization": "none",
        "load_format": "safetensors",
        "gpu_memory_utilization": 0.5,
        "tensor_parallel_size": 2,
    }
    for name in ("awq", "gptq_marlin", "compressed-tensors"):
        assert translate({"quantization": name}) == {"quantization": "stored"}
    assert found.keys() <= EngineKeywords.__annotations__.keys()
    for keyword, value in (
        ("trust_remote_code", True),
        ("tokenizer", "another"),
        ("enable_lora", True),
        ("pipeline_parallel_size", 2),
        ("enable_chunked_prefill", False),
    ):
        with pytest.raises(ConfigError, match=rf"^{keyword}: must be .*, got {value!r}$"):
            LLM("a/b", target="127.0.0.1:1", **{keyword: value})


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
