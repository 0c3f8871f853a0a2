"""A tensor that nothing reads is refused by name, unless it changes nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig

from quire.contract.engine_options import LoadOptions
from quire.contract.errors import ModelLoadError
from quire.contract.workers import LoadSpec
from tests.factories import (
    CONFIGS,
    FALLBACKS,
    deepseek_v3_config,
    edit_config,
    gpt2_config,
    gpt_neox_config,
    gptj_config,
    llama_config,
    qwen2_config,
    save_model,
)
from tests.models.driver import Driver, load_runner
from tests.models.test_published_formats import FORMATS, logits, save_both
from worker_svc.loading.loader import load_model
from worker_svc.parallel.group import ParallelGroup

PROMPT = [5, 9, 77, 30]
Config = Callable[..., PreTrainedConfig]


def add(directory: Path, **tensors: torch.Tensor) -> None:
    path = directory / "model.safetensors"
    more = {name.replace("__", "."): each for name, each in tensors.items()}
    save_file({**load_file(path), **more}, path, metadata={"format": "pt"})


def refusal(directory: Path) -> str:
    with pytest.raises(ModelLoadError) as refused:
        load_model(LoadSpec(str(directory), LoadOptions()), "", ParallelGroup())
    assert "\n" not in refused.value.message
    return refused.value.message


@pytest.mark.parametrize("name", CONFIGS)
def test_a_tensor_that_nothing_reads_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """By each family, with what other architectures have: biases, norms, towers, layers, heads."""
    config = CONFIGS[name]()
    save_model(tmp_path, config)
    architecture = config.architectures[0]
    add(tmp_path, vision_tower__patch__weight=torch.ones(2))
    expected = (
        f"{tmp_path}/model.safetensors: vision_tower.patch.weight: must be absent, got a tensor "
        f"that {architecture} does not have"
    )
    assert refusal(tmp_path) == expected
    add(tmp_path, v_head__summary__weight=torch.ones(2))
    assert refusal(tmp_path).endswith(f"{architecture} does not have (and 1 more)")


@pytest.mark.parametrize(
    "tensor",
    [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.self_attn.sinks",
        "model.layers.0.mlp.experts.0.gate_proj.weight",
        "model.layers.0.self_attn.masked_bias",
        "model.layers.3.mlp.gate_proj.weight",
        "model.norm.bias",
        "lm_head.bias",
        "model.layers.0.self_attn.q_proj.lora_A.weight",
    ],
)
def test_what_another_configuration_would_read_is_refused(tensor: str, tmp_path: Path) -> None:
    save_model(tmp_path, llama_config())
    add(tmp_path, **{tensor: torch.zeros(64)})
    assert f": {tensor}: must be absent, got a tensor that LlamaForC" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("make", "tensors"),
    [
        (llama_config, ["model.layers.0.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"]),
        (gpt2_config, ["transformer.h.1.attn.bias", "transformer.h.1.attn.masked_bias"]),
        (gptj_config, ["transformer.h.1.attn.bias", "transformer.h.1.attn.masked_bias"]),
        (
            gpt_neox_config,
            ["gpt_neox.layers.2.attention.bias", "gpt_neox.layers.2.attention.masked_bias"],
        ),
    ],
)
def test_what_old_releases_saved_is_left_out(
    make: Config, tensors: list[str], tmp_path: Path
) -> None:
    save_model(tmp_path, make())
    expected = Driver(load_runner(tmp_path)).generate([PROMPT], 8)
    add(tmp_path, **{name: torch.ones(1, 1, 4, 4) for name in tensors})
    assert Driver(load_runner(tmp_path)).generate([PROMPT], 8) == expected


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    save_model(tmp_path, deepseek_v3_config())
    add(tmp_path, model__layers__3__eh_proj__weight=torch.ones(2, 2))
    edit_config(tmp_path, num_nextn_predict_layers=0)
    assert ": model.layers.3.eh_proj.weight: must be absent" in refusal(tmp_path)
    for count in (1, None):  # as transformers' configuration has it
        edit_config(tmp_path, num_nextn_predict_layers=count)
        load_runner(tmp_path)
    add(tmp_path, model__layers__4__eh_proj__weight=torch.ones(2, 2))
    assert ": model.layers.4.eh_proj.weight: must be absent" in refusal(tmp_path)


def test_a_tied_head_is_left_out_if_it_is_the_embedding(tmp_path: Path) -> None:
    save_model(tmp_path, qwen2_config())
    expected = Driver(load_runner(tmp_path)).generate([PROMPT], 8)
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    add(tmp_path, lm_head__weight=embedding.clone())
    assert Driver(load_runner(tmp_path)).generate([PROMPT], 8) == expected
    # transformers would compute with this one, whatever the configuration has.
    add(tmp_path, lm_head__weight=embedding + 1)
    assert "tie_word_embeddings: must be false where lm_head.weight is not" in refusal(tmp_path)
    edit_config(tmp_path, tie_word_embeddings=False)
    load_runner(tmp_path)


def test_without_a_head_that_of_the_checkpoint_is_left_out(tmp_path: Path) -> None:
    save_model(tmp_path, llama_config())
    edit_config(tmp_path, architectures=["LlamaModel"])
    info: Any = load_model(LoadSpec(str(tmp_path), LoadOptions()), "", ParallelGroup()).info
    assert info.vectors_only


def test_what_is_not_of_the_weights_is_left_out(tmp_path: Path) -> None:
    """Scales of activations and caches; the biases of zeros that AutoGPTQ wrote."""
    stored, plain = save_both(tmp_path, FORMATS["gptq of 4 bits"])
    attention = "model.layers.0.self_attn."
    for name in ("k_proj.input_scale", "k_proj.output_scale", "k_scale", "k_proj.input_zero_point"):
        add(stored, **{attention + name: torch.ones(1)})
    add(stored, **{f"{attention}k_proj.bias": torch.zeros(32)})
    assert torch.equal(logits(stored), logits(plain))
    for name in ("k_proj.bias", "k_norm.weight", "k_proj.weight_global_scale"):
        wrong, _ = save_both(tmp_path / name, FORMATS["gptq of 4 bits"])
        add(wrong, **{attention + name: torch.ones(32)})
        assert f": {attention}{name}: must be absent" in refusal(wrong)


@pytest.mark.parametrize("name", FALLBACKS)
def test_a_model_of_the_fallback_has_its_tensors_and_no_others(name: str, tmp_path: Path) -> None:
    config = FALLBACKS[name]()
    save_model(tmp_path, config)
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    add(tmp_path, model__layers__0__extra__weight=torch.ones(2), vision__bias=torch.ones(2))
    assert refusal(tmp_path) == (
        f"{tmp_path}: model.layers.0.extra.weight: must be absent, got a tensor that "
        f"{config.architectures[0]} lacks (and 1 more)"
    )
    lost = next(key for key in sorted(stored) if "layers.1." in key and key.endswith("proj.weight"))
    save_file({key: stored[key] for key in stored if key != lost}, path, metadata={"format": "pt"})
    assert refusal(tmp_path) == f"{tmp_path}: {lost}: must be a tensor, got none"


def test_a_model_of_the_fallback_may_store_frequencies_and_a_tied_head(tmp_path: Path) -> None:
    save_model(tmp_path, FALLBACKS["olmo"](tie_word_embeddings=True))
    stored = load_file(tmp_path / "model.safetensors")
    add(
        tmp_path,
        lm_head__weight=stored["model.embed_tokens.weight"].clone(),
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8),
    )
    assert load_model(LoadSpec(str(tmp_path), LoadOptions()), "", ParallelGroup()).info
