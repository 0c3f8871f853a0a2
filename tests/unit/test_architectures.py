"""docs/models.md is true: of our own families, of the installed transformers, row by row."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from launch.architecture_check import check_architecture
from quire.contract.errors import ModelLoadError
from tools.architectures import (
    PAGE,
    Outcome,
    Row,
    classify,
    classify_apart,
    page,
    summary,
    tiny_config,
)
from tools.published_configs import PUBLISHED
from worker_svc.loading import fallback_proof
from worker_svc.loading.hf_config import HfConfig
from worker_svc.models.llama import LlamaConfig, build_llama, read_llama
from worker_svc.models.native import NATIVE
from worker_svc.models.registry import FAMILIES, ModelFamily

ROW = re.compile(
    r"^\| (\S+) \| `(\w+)` \| (\w+) \| (yes|no|) ?\| (.*?) \| (.*?) ?\|$", re.MULTILINE
)
TEXT = PAGE.read_text()
ROWS = {
    model_type: Row(model_type, architecture, Outcome(outcome), reason, bits == "yes")
    for model_type, architecture, outcome, bits, _, reason in ROW.findall(TEXT)
}
OUTCOMES = {model_type: (row.architecture, row.outcome) for model_type, row in ROWS.items()}
# Of each outcome, and of what makes tiny models hard: experts, values narrower than keys, encoders.
REDERIVED = (
    "bert",
    "deepseek_v32",
    "doge",
    "gemma4_assistant",
    "gpt_oss",
    "lfm2",
    "mamba",
    "minicpm3",
    "mixtral",
    "stablelm",
)

# Of those that no worker serves, some that people have.
FOUND_WITHOUT_RUNNING = {"jamba", "mamba", "mamba2", "nemotron_h", "qwen3_5_text", "qwen3_next"}


def test_native_rows_are_the_registry() -> None:
    native = {name for name, outcome in OUTCOMES.values() if outcome is Outcome.NATIVE}
    assert native == set(FAMILIES)


def test_names_are_known_without_the_families() -> None:
    assert set(FAMILIES) == NATIVE


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_what_starts_nothing_refuses_only_what_no_worker_serves(row: Row, tmp_path: Path) -> None:
    reads = f'{{"model_type": "{row.model_type}", "architectures": ["{row.architecture}"]}}'
    (tmp_path / "config.json").write_text(reads)
    hf = HfConfig.read(tmp_path / "config.json")
    asked: dict[str, Any] = {
        "tensor_parallel_size": 1,
        "quantization": "none",
        "load_format": "safetensors",
    }
    if row.outcome is not Outcome.REFUSED:
        check_architecture(hf, **asked)
        return
    try:
        check_architecture(hf, **asked)
    except ModelLoadError as error:
        # A worker may have found another reason first.
        assert f"{row.architecture} is not served: " in error.message
    else:
        assert row.model_type not in FOUND_WITHOUT_RUNNING


def test_the_table_is_of_the_installed_transformers() -> None:
    assert f"transformers {transformers.__version__} has" in TEXT
    names = {model_type: name for model_type, (name, _) in OUTCOMES.items()}
    assert names == dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def test_the_page_counts_its_rows() -> None:
    assert f"language model: {summary(ROWS.values())}." in TEXT


def test_every_row_names_what_its_layers_are_of() -> None:
    sources = {model_type: source for model_type, *_, source, _ in ROW.findall(TEXT)}
    assert sources == {
        model_type: str(PUBLISHED.get(model_type, "defaults"))
        for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    }
    assert set(PUBLISHED) <= set(sources)


@pytest.mark.parametrize("model_type", [name for name, each in PUBLISHED.items() if each.keys])
def test_published_keys_are_read_and_differ_from_the_defaults(model_type: str) -> None:
    keys, config_class = PUBLISHED[model_type].keys, transformers.CONFIG_MAPPING[model_type]
    default, config = config_class().to_dict(), config_class(**keys).to_dict()
    old_names = keys.keys() - default.keys()
    for key in keys.keys() - old_names:
        assert config[key] != default[key], key
    for key in old_names:
        # It only becomes an attribute of its own name where nothing reads it.
        without = {other: value for other, value in keys.items() if other != key}
        config_without = config_class(**without).to_dict()
        assert any(config[name] != config_without[name] for name in default), key


def test_no_native_family_gives_other_logits_and_few_are_unknown() -> None:
    outcomes = [outcome for _, outcome in OUTCOMES.values()]
    assert Outcome.WRONG not in outcomes
    assert outcomes.count(Outcome.UNKNOWN) < 10


def test_what_is_written_can_be_read() -> None:
    rows = [
        Row("b", "BForCausalLM", Outcome.REFUSED, "one | two < *three*"),
        Row("a", "AForCausalLM", Outcome.FALLBACK),
    ]
    assert [found[0] for found in ROW.findall(page(rows))] == ["a", "b"]
    assert str(rows[0]).endswith(r"| one \| two &lt; \*three\* |")


def test_counts_are_of_what_is_served() -> None:
    rows = [
        Row("a", "AForCausalLM", Outcome.NATIVE, has_bits=True),
        Row("b", "BForCausalLM", Outcome.FALLBACK, has_bits=True),
        Row("c", "CForCausalLM", Outcome.FALLBACK),
        Row("d", "DForCausalLM", Outcome.REFUSED, "why"),
        Row("e", "EForCausalLM", Outcome.UNKNOWN, "why"),
    ]
    assert summary(rows) == "served 3, with bits 2, native 1 of 5"
    assert [found[3] for found in ROW.findall(page(rows))] == ["yes", "yes", "no", "", ""]


def test_tiny_models_keep_every_kind_of_layer() -> None:
    config = tiny_config("qwen3_next")
    assert config.layer_types == ["linear_attention"] * 3 + ["full_attention"]
    assert config.hidden_size == 64
    assert config.num_experts == 4
    assert config.num_experts_per_tok == 2
    assert config.vocab_size == 160


def test_tiny_models_have_the_kinds_of_published_ones() -> None:
    # The defaults of transformers have attention alone.
    assert set(tiny_config("lfm2").layer_types) == {"conv", "full_attention"}
    assert set(tiny_config("minimax_m3_vl_text").layer_types) == {
        "full_attention",
        "minimax_m3_sparse",
    }
    # A part of several.
    text = tiny_config("gemma4").get_text_config()
    assert text.enable_moe_block
    assert text.num_experts == 4


def test_a_model_without_an_id_is_served_without_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert classify("arcee") == Row("arcee", "ArceeForCausalLM", Outcome.FALLBACK, has_bits=True)
    monkeypatch.setattr(fallback_proof, "find_dependence", lambda *_: "company")
    assert classify("arcee") == Row("arcee", "ArceeForCausalLM", Outcome.FALLBACK)


def test_a_family_that_computes_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(hf: HfConfig) -> LlamaConfig:
        return replace(read_llama(hf), residual_multiplier=0.9)

    assert classify("llama") == Row("llama", "LlamaForCausalLM", Outcome.NATIVE, has_bits=True)
    monkeypatch.setitem(FAMILIES, "LlamaForCausalLM", ModelFamily(read, build_llama))
    row = classify("llama")
    assert row.outcome is Outcome.WRONG
    assert row.reason.startswith("its logits are off by ")


@pytest.mark.deep
@pytest.mark.parametrize("model_type", REDERIVED)
def test_rows_can_be_derived_again(model_type: str) -> None:
    assert f"{classify_apart(model_type)}\n" in TEXT
