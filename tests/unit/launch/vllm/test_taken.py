"""What people type most of `vllm serve`: it is taken, and changes what it says and nothing else."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from launch.cluster.config import ClusterConfig, embedded_model
from launch.llm_cluster import keywords_of
from launch.model_source import ModelSource
from launch.vllm.keywords import translate
from quire import LLM
from quire.contract.errors import ConfigError
from tests.unit.launch.vllm.test_options import Serve, serve, served

__all__ = ["serve", "served"]

NOTE = "note: without effect here: "
TEMPLATE, FILE = "{template}", "{file}"

# By line: the options of Quire that it changes.
TAKEN: dict[str, dict[str, object]] = {
    # The model.
    "--tokenizer someone/other": {"tokenizer": "someone/other"},
    "--tokenizer-mode auto": {},
    "--revision main": {"revision": "main"},
    "--download-dir /models": {"download_dir": Path("/models")},
    "--dtype half": {"dtype": "float16"},
    "--dtype auto": {},
    "--max-model-len auto": {},
    "--max-model-len=-1": {},
    "--max-model-len 1k": {"max_model_len": 1000},
    "--quantization gptq": {"quantization": "stored"},
    "--quantization fp8": {"quantization": "stored"},
    "-q awq": {"quantization": "stored"},
    "--load-format auto": {},
    # Its names, and what is answered.
    "--served-model-name a": {"served_model_name": "a"},
    "--served-model-name a b": {"served_model_name": "a", "served_model_alias": ("b",)},
    "--served-model-name a b c --enforce-eager": {
        "served_model_name": "a",
        "served_model_alias": ("b", "c"),
        "enforce_eager": True,
    },
    "--enable-auto-tool-choice": {},
    "--enable-auto-tool-choice --tool-call-parser hermes": {"tool_call_parser": "hermes"},
    "--reasoning-parser deepseek_r1": {"reasoning_parser": "deepseek_r1"},
    "--generation-config vllm": {"generation_config": "vllm"},
    f"--chat-template {TEMPLATE}": {"chat_template": TEMPLATE},
    "--seed 42": {"seed": 42},
    # Memory and steps.
    "--gpu-memory-utilization 0.95": {"gpu_memory_utilization": 0.95},
    "--swap-space 1": {"swap_space": 1.0},
    "--max-num-seqs 64": {"max_num_seqs": 64},
    "--max-num-batched-tokens 8192": {"max_num_batched_tokens": 8192},
    "--max-num-batched-tokens 4K": {"max_num_batched_tokens": 4096},
    "--enable-prefix-caching": {},
    "--no-enable-prefix-caching": {"enable_prefix_caching": False},
    "--enable-chunked-prefill": {},
    "--kv-cache-dtype fp8_e4m3": {"kv_cache_dtype": "fp8"},
    "--kv-cache-dtype fp8": {"kv_cache_dtype": "fp8"},
    "--kv-cache-dtype auto": {},
    "--enforce-eager": {"enforce_eager": True},
    # Where it runs.
    "--tensor-parallel-size 2": {"tensor_parallel_size": 2},
    "-tp 2": {"tensor_parallel_size": 2},
    "--distributed-executor-backend mp": {},
    "--host 127.0.0.1 --port 8001": {"port": 8001},
    "--api-key token-abc123": {"api_key": ("token-abc123",)},
    "--root-path /llm": {"root_path": "/llm"},
    f"--config {FILE}": {"max_num_seqs": 3, "port": 8001},
}
# By line: what it says that has no effect.
IDLE = {
    "--trust-remote-code": "--trust-remote-code",
    "--disable-log-stats": "--disable-log-stats",
    "--uvicorn-log-level warning": "--uvicorn-log-level",
    "-O3": "--optimization-level",
    "-O 3": "--optimization-level",
    "-O=3": "--optimization-level",
    "--optimization-level 3": "--optimization-level",
    "--optimization_level=3": "--optimization-level",
    "--disable-log-stats -O3": "--disable-log-stats, --optimization-level",
}


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[ModelSource]:
    """Where models would have been looked for. Ports of this machine may be in use."""
    found: list[ModelSource] = []

    def path_of(source: ModelSource, model: str | Path) -> Path:
        found.append(source)
        return Path(model)

    monkeypatch.setattr(ModelSource, "path_of", path_of)
    monkeypatch.setattr("launch.preflight.check_ports", lambda _: None)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    return found


@pytest.mark.parametrize("line", [*TAKEN, *IDLE])
def test_a_line_changes_what_it_says(
    line: str,
    serve: Serve,
    served: list[ClusterConfig],
    sources: list[ModelSource],
    tmp_path: Path,
) -> None:
    template, file = tmp_path / "template", tmp_path / "options.yaml"
    template.write_text("{{ messages }}")
    file.write_text("max-num-seqs: 3\nport: 8001\n")
    for words in ([], shlex.split(line.format(template=template, file=file))):
        result = serve(*words)
        assert result.exit_code == 0, result.output
    plain, found = (
        {**vars(source), **vars(config)} for source, config in zip(sources, served, strict=True)
    )
    changed = TAKEN.get(line, {})
    if "chat_template" in changed:
        changed = {"chat_template": template}
    assert found == {**plain, **changed}
    notes = [each for each in result.output.splitlines() if each.startswith(NOTE)]
    assert notes == ([f"{NOTE}{IDLE[line]}"] if line in IDLE else [])


def test_a_model_stands_before_and_behind_its_options(
    serve: Serve, served: list[ClusterConfig], sources: list[ModelSource]
) -> None:
    model = str(embedded_model())
    for words in ([model, "--served-model-name", "a", "b"], ["--served-model-name=a", model]):
        assert serve(*words).exit_code == 0
        assert (served[-1].model, served[-1].served_model_name) == (embedded_model(), "a")


@pytest.mark.parametrize("runner", ["auto", "generate", "pooling"])
def test_a_model_has_vectors_beside_texts(runner: str) -> None:
    assert translate({"runner": runner}) == ({}, [])
    assert keywords_of({"runner": runner}) == {}
    keywords: Any = {"runner": runner}
    with LLM(target="127.0.0.1:1", **keywords) as llm:
        assert llm.target == "127.0.0.1:1"


def test_another_runner_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^runner: must be auto or generate or pooling, got x"):
        keywords_of({"runner": "x"})
