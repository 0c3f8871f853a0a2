"""config.json of the families: what is refused by name, and older names of the same key."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig

from quire.contract.errors import ModelLoadError
from tests.factories import (
    bloom_config,
    cohere2_config,
    cohere_config,
    deepseek_v2_config,
    deepseek_v3_config,
    edit_config,
    falcon_config,
    gemma2_config,
    gemma3_config,
    glm_config,
    gpt_neox_config,
    gptj_config,
    granite_config,
    mpt_config,
    phi3_config,
    phi_config,
    qwen3_moe_config,
    rope,
    save_model,
    stablelm_config,
    starcoder2_config,
)
from tests.models.driver import Driver, load_runner

PROMPT = [5, 9, 77, 30]
YARN = {
    "factor": 4.0,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 64,
}
LONGROPE_FACTORS = {"short_factor": [1.5] * 6, "long_factor": [2.5] * 6}


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (
            gpt_neox_config,
            {"rope_parameters": None, "rotary_pct": 0.2},
            "partial_rotary_factor: must leave an even number of 16 features to rotate, got 3",
        ),
        (
            gpt_neox_config,
            {"rope_parameters": None, "rotary_pct": 1.5},
            "partial_rotary_factor: must leave an even number of 16 features to rotate, got 24",
        ),
        (gptj_config, {"rotary_dim": 7}, "rotary_dim: must be even and at most 16, got 7"),
        (gptj_config, {"rotary_dim": 18}, "rotary_dim: must be even and at most 16, got 18"),
        (
            phi3_config,
            {"rope_parameters": rope("yarn", factor=2.0)},
            "rope_type: must be default or longrope, got 'yarn'",
        ),
        (
            falcon_config,
            {"new_decoder_architecture": True, "parallel_attn": False},
            "parallel_attn: must be true with new_decoder_architecture, got false",
        ),
        (
            falcon_config,
            {"num_ln_in_parallel_attn": 2},
            "num_ln_in_parallel_attn: must be 1 without new_decoder_architecture, got 2",
        ),
        (
            falcon_config,
            {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 3},
            "num_ln_in_parallel_attn: must be 1 or 2, got 3",
        ),
        (
            starcoder2_config,
            {"rope_parameters": None, "partial_rotary_factor": 0.5},
            "partial_rotary_factor: must be 1, got 0.5",
        ),
        (granite_config, {"logits_scaling": 0}, "logits_scaling: must not be 0"),
        (
            bloom_config,
            {"slow_but_exact": True, "pretraining_tp": 2},
            "slow_but_exact: must be false with pretraining_tp above 1, got true",
        ),
        (
            mpt_config,
            {"attn_config": {"alibi": False}},
            "attn_config: alibi: must be true, got false",
        ),
        (
            mpt_config,
            {"attn_config": {"prefix_lm": True}},
            "attn_config: prefix_lm: must be false, got true",
        ),
        (
            mpt_config,
            {"attn_config": {"qk_ln": True}},
            "attn_config: qk_ln: must be false, got true",
        ),
        (
            mpt_config,
            {"attn_config": {"attn_type": "multiquery_attention"}},
            "attn_config: attn_type: must be 'multihead_attention', got 'multiquery_attention'",
        ),
        (mpt_config, {"no_bias": False}, "no_bias: must be true, got false"),
        (mpt_config, {"logit_scale": "inv_sqrt_d_model"}, "logit_scale: must be absent"),
        (mpt_config, {"norm_type": "rmsnorm"}, "norm_type: must be layernorm or .*'rmsnorm'"),
        (mpt_config, {"expansion_ratio": 2}, "expansion_ratio: must be 4, got 2"),
        (
            deepseek_v2_config,
            {"topk_method": "noaux_tc"},
            "topk_method: must be greedy or group_limited_greedy, got 'noaux_tc'",
        ),
        (
            deepseek_v3_config,
            {"topk_method": "greedy"},
            "topk_method: must be noaux_tc, got 'greedy'",
        ),
        (
            deepseek_v3_config,
            {"scoring_func": "softmax"},
            "scoring_func: must be sigmoid, got 'softmax'",
        ),
        (
            deepseek_v2_config,
            {"num_key_value_heads": 2},
            r"num_key_value_heads: must be num_attention_heads \(4\), got 2",
        ),
        (
            deepseek_v2_config,
            {"kv_lora_rank": 512, "qk_rope_head_dim": 72},
            r"qk_rope_head_dim: must be a multiple of 8 up to 64, which kv_lora_rank \(512\) "
            "leaves of 576, got 72",
        ),
        (
            deepseek_v3_config,
            {"qk_rope_head_dim": 12},
            r"qk_rope_head_dim: must be a multiple of 8 up to 544, which kv_lora_rank \(32\) "
            "leaves of 576, got 12",
        ),
        (
            deepseek_v2_config,
            {"kv_lora_rank": 28, "qk_rope_head_dim": 12},
            "config.json: kv_lora_rank: must be a multiple of 8 up to 568, got 28",
        ),
        (
            deepseek_v3_config,
            {"kv_lora_rank": 576},
            "config.json: kv_lora_rank: must be a multiple of 8 up to 568, got 576",
        ),
        (
            deepseek_v2_config,
            {"topk_method": "group_limited_greedy", "topk_group": 2},
            "n_group: is missing",
        ),
        (
            deepseek_v2_config,
            {"topk_method": "group_limited_greedy", "n_group": 2},
            "topk_group: is missing",
        ),
        (
            deepseek_v2_config,
            {"norm_topk_prob": True},
            "norm_topk_prob: must be false for DeepSeek-V2, whose own code and transformers take "
            "it differently, got true",
        ),
        (
            deepseek_v3_config,
            {"first_k_dense_replace": 1.7},
            "first_k_dense_replace: must be an integer of at least 0, got 1.7",
        ),
        (
            deepseek_v2_config,
            {"first_k_dense_replace": -3},
            "first_k_dense_replace: must be an integer of at least 0, got -3",
        ),
        (
            deepseek_v2_config,
            {"n_shared_experts": -1},
            "n_shared_experts: must be an integer of at least 0, got -1",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_refused_by_name(
    make: Callable[..., PreTrainedConfig], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_model(tmp_path, make())
    load_runner(tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(ModelLoadError, match=message):
        load_runner(tmp_path)


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (
            partial(gpt_neox_config, rotary_emb_base=500),
            {"rope_parameters": None, "rotary_pct": 0.5, "rotary_emb_base": 500},
        ),
        (
            gptj_config,
            {
                "n_embd": None,
                "hidden_size": 64,
                "n_head": None,
                "num_attention_heads": 4,
                "n_layer": None,
                "num_hidden_layers": 3,
                "n_positions": None,
                "max_position_embeddings": 256,
            },
        ),
        (
            partial(phi_config, partial_rotary_factor=0.25),
            {"rope_parameters": None, "rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
        ),
        (
            partial(
                phi3_config,
                max_position_embeddings=8192,
                rope_parameters=rope("longrope", **LONGROPE_FACTORS),
            ),
            {
                "rope_parameters": None,
                "original_max_position_embeddings": None,
                "rope_scaling": {"type": "su", **LONGROPE_FACTORS},
                "partial_rotary_factor": 0.75,
            },
        ),
        (falcon_config, {"hidden_size": None, "n_embed": 64}),
        (gemma2_config, {"layer_types": None}),
        (
            partial(
                gemma3_config,
                rope_parameters={
                    "sliding_attention": rope("default", rope_theta=500.0),
                    "full_attention": rope("linear", rope_theta=3e4, factor=4.0),
                },
            ),
            {
                "rope_parameters": None,
                "rope_local_base_freq": 500.0,
                "rope_theta": 3e4,
                "rope_scaling": {"rope_type": "linear", "factor": 4.0},
                "layer_types": None,
                "sliding_window_pattern": 2,
            },
        ),
        (qwen3_moe_config, {"num_local_experts": None, "num_experts": 6}),
        (partial(qwen3_moe_config, head_dim=16), {"head_dim": None}),
        (
            partial(stablelm_config, partial_rotary_factor=0.25),
            {"rope_parameters": None, "rope_theta": 10_000.0, "partial_rotary_factor": None},
        ),
        (
            glm_config,
            {"rope_parameters": None, "rope_theta": 10_000.0, "partial_rotary_factor": None},
        ),
        (
            partial(cohere_config, rope_parameters=rope("default", rope_theta=500_000.0)),
            {"rope_parameters": None},
        ),
        (
            partial(cohere2_config, layer_types=None, sliding_window_pattern=2),
            {"layer_types": None, "sliding_window_pattern": 2},
        ),
        (
            bloom_config,
            {
                "hidden_size": None,
                "n_embed": 64,
                "n_head": None,
                "num_attention_heads": 4,
                "n_layer": None,
                "num_hidden_layers": 3,
            },
        ),
        (
            partial(deepseek_v2_config, rope_parameters=rope("yarn", **YARN)),
            {
                "rope_parameters": None,
                "rope_theta": 10_000.0,
                "rope_scaling": {"type": "yarn", **YARN},
                "scoring_func": "softmax",
                "n_group": 1,
                "topk_group": 1,
                "moe_layer_freq": 1,
            },
        ),
        (
            partial(deepseek_v3_config, rope_parameters=rope("yarn", **YARN)),
            {
                "rope_parameters": None,
                "rope_theta": 10_000.0,
                "rope_scaling": {"type": "yarn", **YARN},
                "rope_interleave": None,
                "scoring_func": "sigmoid",
                "topk_method": "noaux_tc",
                "moe_layer_freq": 1,
            },
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_older_names_mean_the_same(
    make: Callable[..., PreTrainedConfig], changes: dict[str, Any], tmp_path: Path
) -> None:
    def run() -> tuple[list[list[int]], torch.Tensor]:
        driver = Driver(load_runner(tmp_path))
        return driver.generate([PROMPT], 8), driver.logits[0]

    save_model(tmp_path, make())
    tokens, logits = run()
    edit_config(tmp_path, **changes)
    older_tokens, older_logits = run()
    assert older_tokens == tokens
    assert torch.equal(older_logits, logits)
