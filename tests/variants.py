"""Switches of families that one configuration of each does not show."""

from transformers import PreTrainedConfig

from tests.factories import (
    CONFIGS,
    bloom_config,
    cohere_config,
    deepseek_v2_config,
    deepseek_v3_config,
    falcon_config,
    gemma3_config,
    glm_config,
    gpt2_config,
    gpt_neox_config,
    gptj_config,
    granite_config,
    llama_config,
    mpt_config,
    olmo2_config,
    opt_config,
    phi3_config,
    phi_config,
    qwen2_config,
    qwen3_moe_config,
    rope,
    stablelm_config,
    starcoder2_config,
)

VARIANTS: dict[str, PreTrainedConfig] = {
    **{name: make() for name, make in CONFIGS.items()},
    "llama_mha_biased": llama_config(num_key_value_heads=4, attention_bias=True, mlp_bias=True),
    "llama_mqa_gelu": llama_config(num_key_value_heads=1, hidden_act="gelu"),
    "llama_linear": llama_config(rope_parameters=rope("linear", factor=4.0)),
    "llama_dynamic": llama_config(rope_parameters=rope("dynamic", factor=2.0)),
    "llama_yarn": llama_config(
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=64)
    ),
    "llama_llama3": llama_config(
        rope_parameters=rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        )
    ),
    "llama_longrope": llama_config(
        rope_parameters=rope(
            "longrope",
            factor=4.0,
            short_factor=[1.0 + 0.1 * i for i in range(8)],
            long_factor=[2.0 + 0.5 * i for i in range(8)],
            original_max_position_embeddings=256,
        )
    ),
    "qwen3_moe_normalized": qwen3_moe_config(
        norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1]
    ),
    "gemma3_scaled": gemma3_config(
        final_logit_softcapping=8.0,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        },
    ),
    "qwen2_upper_windows": qwen2_config(
        use_sliding_window=True, sliding_window=7, max_window_layers=1
    ),
    "opt_norm_after_narrow": opt_config(do_layer_norm_before=False, word_embed_proj_dim=32),
    "opt_plain": opt_config(enable_bias=False, activation_function="gelu"),
    "gpt2_scaled": gpt2_config(scale_attn_by_inverse_layer_idx=True, n_inner=72),
    "gpt_neox_sequential": gpt_neox_config(use_parallel_residual=False, rotary_emb_base=500.0),
    "gpt_neox_no_attention_bias": gpt_neox_config(attention_bias=False, rotary_pct=1.0),
    "gpt_neox_linear": gpt_neox_config(rope_parameters=rope("linear", factor=2.0)),
    "gptj_tied": gptj_config(tie_word_embeddings=True, rotary_dim=16, n_inner=72),
    "phi_qk_norm": phi_config(qk_layernorm=True, partial_rotary_factor=0.25),
    "phi3_window": phi3_config(
        sliding_window=9, partial_rotary_factor=1.0, tie_word_embeddings=True
    ),
    "phi3_longrope": phi3_config(
        rope_parameters=rope(
            "longrope",
            factor=4.0,
            short_factor=[1.0 + 0.1 * i for i in range(6)],
            long_factor=[2.0 + 0.5 * i for i in range(6)],
        ),
        original_max_position_embeddings=256,
    ),
    "falcon_groups": falcon_config(
        new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False
    ),
    "falcon_groups_one_norm": falcon_config(
        new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1
    ),
    "falcon_all_heads_sequential": falcon_config(multi_query=False, parallel_attn=False, bias=True),
    "falcon_alibi": falcon_config(
        alibi=True, multi_query=False, parallel_attn=False, hidden_size=48, num_attention_heads=6
    ),
    "starcoder2_plain": starcoder2_config(
        sliding_window=None, use_bias=False, tie_word_embeddings=False
    ),
    "bloom_residual_after_norm": bloom_config(
        apply_residual_connection_post_layernorm=True, hidden_size=48, n_head=6
    ),
    "mpt_clipped": mpt_config(
        d_model=48,
        n_heads=6,
        attn_config={"clip_qkv": 1.5, "softmax_scale": 0.4},
        tie_word_embeddings=False,
    ),
    "stablelm_parallel_qk_norm": stablelm_config(
        use_parallel_residual=True, use_qkv_bias=True, qk_layernorm=True, partial_rotary_factor=0.25
    ),
    "olmo2_mqa_biased": olmo2_config(num_key_value_heads=1, attention_bias=True),
    "granite_biased": granite_config(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "cohere_qk_norm": cohere_config(
        use_qk_norm=True, attention_bias=True, tie_word_embeddings=False
    ),
    "deepseek_v2_groups": deepseek_v2_config(
        q_lora_rank=48,
        topk_method="group_limited_greedy",
        n_routed_experts=8,
        n_group=4,
        topk_group=2,
        attention_bias=True,
        mlp_bias=True,
    ),
    "deepseek_v2_yarn": deepseek_v2_config(
        rope_parameters=rope(
            "yarn",
            factor=4.0,
            mscale=0.707,
            mscale_all_dim=0.5,
            original_max_position_embeddings=64,
        ),
        tie_word_embeddings=True,
        num_experts_per_tok=6,
    ),
    "deepseek_v3_yarn": deepseek_v3_config(
        rope_parameters=rope(
            "yarn",
            factor=4.0,
            mscale=1.0,
            mscale_all_dim=1.0,
            original_max_position_embeddings=64,
        ),
        rope_interleave=False,
        norm_topk_prob=False,
        n_group=1,
        topk_group=1,
        q_lora_rank=None,
        attention_bias=True,
    ),
    "glm_no_bias": glm_config(attention_bias=False, partial_rotary_factor=1.0),
}
"""Every family, and every switch that changes its arithmetic."""
