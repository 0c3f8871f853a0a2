"""Tiny random models of every served family, as Hugging Face directories."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Cohere2Config,
    CohereConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4Config,
    GlmConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    HeliumConfig,
    LlamaConfig,
    MiniCPM3Config,
    MistralConfig,
    MixtralConfig,
    MptConfig,
    NemotronConfig,
    Olmo2Config,
    OlmoConfig,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
    StableLmConfig,
    Starcoder2Config,
)

VOCAB_SIZE = 131
MAX_POSITIONS = 256
EOS_TOKEN_ID = 2

_IDS = {"bos_token_id": 1, "eos_token_id": EOS_TOKEN_ID, "pad_token_id": 0}
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_POSITIONS,
    **_IDS,
}


def llama_config(**overrides: Any) -> PreTrainedConfig:
    """Grouped-query attention with two key/value heads."""
    return LlamaConfig(**{**_SIZES, "num_key_value_heads": 2, **overrides})


def mistral_config(**overrides: Any) -> PreTrainedConfig:
    """A window much smaller than the context."""
    return MistralConfig(**{**_SIZES, "num_key_value_heads": 2, "sliding_window": 9, **overrides})


def qwen2_config(**overrides: Any) -> PreTrainedConfig:
    """Biased projections, tied head."""
    sizes = {**_SIZES, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return Qwen2Config(**{**sizes, **overrides})


def qwen3_config(**overrides: Any) -> PreTrainedConfig:
    """Normed heads of a size that is not hidden_size / num_attention_heads."""
    return Qwen3Config(**{**_SIZES, "num_key_value_heads": 2, "head_dim": 24, **overrides})


def opt_config(**overrides: Any) -> PreTrainedConfig:
    """Norms first, tied head."""
    sizes = {key: value for key, value in _SIZES.items() if key != "intermediate_size"}
    return OPTConfig(**{**sizes, "ffn_dim": 80, "word_embed_proj_dim": 64, **overrides})


def gpt2_config(**overrides: Any) -> PreTrainedConfig:
    """Learned positions, tied head."""
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": MAX_POSITIONS,
        **_IDS,
    }
    return GPT2Config(**{**sizes, **overrides})


def gpt_neox_config(**overrides: Any) -> PreTrainedConfig:
    """Parallel residual, rotary over half of each head."""
    return GPTNeoXConfig(**{**_SIZES, "rotary_pct": 0.5, **overrides})


def gptj_config(**overrides: Any) -> PreTrainedConfig:
    """Neighbouring features of half of each head rotated."""
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": MAX_POSITIONS,
        "rotary_dim": 8,
        **_IDS,
    }
    return GPTJConfig(**{**sizes, **overrides})


def phi_config(**overrides: Any) -> PreTrainedConfig:
    """Grouped-query attention, rotary over half of each head."""
    return PhiConfig(**{**_SIZES, "num_key_value_heads": 2, **overrides})


def phi3_config(**overrides: Any) -> PreTrainedConfig:
    """Fused projections, rotary over three quarters of each head."""
    sizes = {**_SIZES, "num_key_value_heads": 2, "partial_rotary_factor": 0.75}
    return Phi3Config(**{**sizes, **overrides})


def falcon_config(**overrides: Any) -> PreTrainedConfig:
    """One key/value head, one norm for attention and MLP; see the variants for other shapes."""
    sizes = {key: value for key, value in _SIZES.items() if key != "intermediate_size"}
    return FalconConfig(**{**sizes, "ffn_hidden_size": 80, **overrides})


def starcoder2_config(**overrides: Any) -> PreTrainedConfig:
    """Grouped-query attention in a window much smaller than the context."""
    sizes = {**_SIZES, "num_key_value_heads": 2, "sliding_window": 9}
    return Starcoder2Config(**{**sizes, **overrides})


def bloom_config(**overrides: Any) -> PreTrainedConfig:
    """ALiBi, normed embeddings, tied head."""
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "n_layer": 3,
        "n_head": 4,
        "seq_length": MAX_POSITIONS,
        **_IDS,
    }
    return BloomConfig(**{**sizes, **overrides})


def mpt_config(**overrides: Any) -> PreTrainedConfig:
    """ALiBi, no bias, tied head; `overrides` of attn_config come as a dictionary."""
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "d_model": 64,
        "n_layers": 3,
        "n_heads": 4,
        "max_seq_len": MAX_POSITIONS,
        **_IDS,
    }
    return MptConfig(**{**sizes, **overrides})


def mixtral_config(**overrides: Any) -> PreTrainedConfig:
    """Experts in every layer, two for each token."""
    sizes = {**_SIZES, "num_key_value_heads": 2, "num_local_experts": 5}
    return MixtralConfig(**{**sizes, **overrides})


def qwen3_moe_config(**overrides: Any) -> PreTrainedConfig:
    """Experts in the second layer only."""
    sizes = {**_SIZES, "num_key_value_heads": 2, "head_dim": 24, "moe_intermediate_size": 32}
    experts = {"num_experts": 6, "num_experts_per_tok": 3, "decoder_sparse_step": 2}
    return Qwen3MoeConfig(**{**sizes, **experts, **overrides})


def gemma_config(**overrides: Any) -> PreTrainedConfig:
    """One key/value head."""
    sizes = {**_SIZES, "num_key_value_heads": 1, "head_dim": 24}
    return GemmaConfig(**{**sizes, **overrides})


def gemma2_config(**overrides: Any) -> PreTrainedConfig:
    """Capped logits, a window in every other layer."""
    sizes = {**_SIZES, "num_key_value_heads": 2, "head_dim": 24, "sliding_window": 9}
    caps = {
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
        "query_pre_attn_scalar": 40,
    }
    return Gemma2Config(**{**sizes, **caps, **overrides})


def gemma3_config(**overrides: Any) -> PreTrainedConfig:
    """Normed heads, two rotary bases, a window in all layers but one."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    sizes = {**_SIZES, "num_key_value_heads": 2, "head_dim": 24, "sliding_window": 9}
    return Gemma3TextConfig(**{**sizes, "layer_types": kinds, **overrides})


def olmo2_config(**overrides: Any) -> PreTrainedConfig:
    """Norms after attention and MLP, query and key normed over all heads."""
    return Olmo2Config(**{**_SIZES, "num_key_value_heads": 2, **overrides})


def granite_config(**overrides: Any) -> PreTrainedConfig:
    """A factor at each of the four places."""
    factors = {
        "embedding_multiplier": 6.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.7,
        "logits_scaling": 1.5,
    }
    return GraniteConfig(**{**_SIZES, "num_key_value_heads": 2, **factors, **overrides})


def glm_config(**overrides: Any) -> PreTrainedConfig:
    """Neighbouring features of half of each head rotated."""
    return GlmConfig(**{**_SIZES, "num_key_value_heads": 2, "head_dim": 24, **overrides})


def glm4_config(**overrides: Any) -> PreTrainedConfig:
    """Norms before and after attention and MLP."""
    return Glm4Config(**{**_SIZES, "num_key_value_heads": 2, "head_dim": 24, **overrides})


def stablelm_config(**overrides: Any) -> PreTrainedConfig:
    """Rotary over half of each head."""
    sizes = {**_SIZES, "num_key_value_heads": 2, "partial_rotary_factor": 0.5}
    return StableLmConfig(**{**sizes, **overrides})


def cohere_config(**overrides: Any) -> PreTrainedConfig:
    """Attention and MLP side by side, scaled logits, tied head."""
    return CohereConfig(**{**_SIZES, "num_key_value_heads": 2, "logit_scale": 0.5, **overrides})


def cohere2_config(**overrides: Any) -> PreTrainedConfig:
    """A window in all layers but one, which rotates nothing."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    sizes = {**_SIZES, "num_key_value_heads": 2, "sliding_window": 9, "layer_types": kinds}
    return Cohere2Config(**{**sizes, **overrides})


_LATENT: dict[str, Any] = {
    **_SIZES,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}


def deepseek_v2_config(**overrides: Any) -> PreTrainedConfig:
    """Latent attention whose queries have no latent; the largest of all experts."""
    experts = {"n_routed_experts": 6, "num_experts_per_tok": 3, "routed_scaling_factor": 1.5}
    return DeepseekV2Config(**{**_LATENT, "q_lora_rank": None, **experts, **overrides})


def deepseek_v3_config(**overrides: Any) -> PreTrainedConfig:
    """Latents of queries too; experts by sigmoids and groups."""
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2}
    return DeepseekV3Config(**{**_LATENT, "q_lora_rank": 48, **experts, **overrides})


def rope(kind: str, **numbers: Any) -> dict[str, Any]:
    """The rope_parameters of a configuration."""
    return {"rope_type": kind, "rope_theta": 10_000.0, **numbers}


CONFIGS: dict[str, Callable[..., PreTrainedConfig]] = {
    "llama": llama_config,
    "mistral": mistral_config,
    "qwen2": qwen2_config,
    "qwen3": qwen3_config,
    "mixtral": mixtral_config,
    "qwen3_moe": qwen3_moe_config,
    "gemma": gemma_config,
    "gemma2": gemma2_config,
    "gemma3": gemma3_config,
    "opt": opt_config,
    "gpt2": gpt2_config,
    "gpt_neox": gpt_neox_config,
    "gptj": gptj_config,
    "phi": phi_config,
    "phi3": phi3_config,
    "falcon": falcon_config,
    "starcoder2": starcoder2_config,
    "bloom": bloom_config,
    "mpt": mpt_config,
    "stablelm": stablelm_config,
    "olmo2": olmo2_config,
    "granite": granite_config,
    "cohere": cohere_config,
    "cohere2": cohere2_config,
    "glm": glm_config,
    "glm4": glm4_config,
    "deepseek_v2": deepseek_v2_config,
    "deepseek_v3": deepseek_v3_config,
}
"""One configuration of every family."""


def _fallback(config_class: type[PreTrainedConfig], **options: Any) -> Callable[..., Any]:
    return lambda **overrides: config_class(
        **{**_SIZES, "num_key_value_heads": 2, **options, **overrides}
    )


def gpt_oss_config(**overrides: Any) -> PreTrainedConfig:
    """Sinks, a window in every other layer, and experts with biases."""
    sizes = {**_SIZES, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 32}
    options = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9}
    return GptOssConfig(**{**sizes, **options, "rope_parameters": rope("default"), **overrides})


FALLBACKS: dict[str, Callable[..., PreTrainedConfig]] = {
    "olmo": _fallback(OlmoConfig, clip_qkv=1.5),
    "helium": _fallback(HeliumConfig, head_dim=16),
    # Values are narrower than keys.
    "minicpm3": _fallback(
        MiniCPM3Config,
        num_key_value_heads=4,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
    ),
    "smollm3": _fallback(SmolLM3Config),
    "nemotron": _fallback(NemotronConfig),
    "gpt_oss": gpt_oss_config,
}
"""Decoders that have no family here: transformers runs them."""

olmo_longrope_config = _fallback(
    OlmoConfig,
    rope_parameters=rope(
        "longrope",
        factor=8.0,
        short_factor=[1.0 + 0.1 * i for i in range(8)],
        long_factor=[2.0 + 0.5 * i for i in range(8)],
        original_max_position_embeddings=32,
    ),
)
"""transformers alone picks its frequencies by the longest sequence of a batch."""


def random_model(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A float32 model whose weights are large enough that its tokens vary.

    With the usual tiny initial weights the residual stream repeats the last token for ever and
    attention hardly matters, so a test of equal tokens would prove little.
    """
    torch.manual_seed(seed)
    # Gemma multiplies embeddings by this.
    scale = config.hidden_size**0.5 if config.model_type.startswith("gemma") else 1.0
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                is_table = "embed" in name or "wte" in name or "wpe" in name
                parameter.normal_(0.0, 0.1 / scale if is_table else 3.0 / parameter.shape[1] ** 0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.2)
    return model


def save_model(directory: Path, config: PreTrainedConfig, *, seed: int = 0, **options: Any) -> Path:
    """Write a random model; `options` go to save_pretrained, e.g. max_shard_size."""
    random_model(config, seed).save_pretrained(directory, **options)
    return directory


def edit_config(directory: Path, **changes: Any) -> None:
    """Change keys of a directory's config.json; None removes one."""
    path = directory / "config.json"
    values = {**json.loads(path.read_text()), **changes}
    removed = {key for key, value in changes.items() if value is None}
    path.write_text(json.dumps({k: v for k, v in values.items() if k not in removed}))
