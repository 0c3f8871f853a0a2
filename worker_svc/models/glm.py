"""GLM-4: Llama with neighbouring features of half of each head rotated; maybe norms all round."""

from dataclasses import replace

from worker_svc.loading.hf_config import HfConfig
from worker_svc.models.llama import LlamaConfig, read_llama_like

DEFAULT_POSITIONS = 131_072
DEFAULT_KV_HEADS = 2
DEFAULT_HEAD_DIM = 128
DEFAULT_RMS_NORM_EPS = 1.5625e-7
DEFAULT_ROTARY_FACTOR = 0.5


def read_glm(hf: HfConfig) -> LlamaConfig:
    """Return a GlmForCausalLM configuration; see ModelFamily."""
    config = read_llama_like(
        hf,
        default_positions=DEFAULT_POSITIONS,
        default_kv_heads=DEFAULT_KV_HEADS,
        default_head_dim=DEFAULT_HEAD_DIM,
        default_norm_eps=DEFAULT_RMS_NORM_EPS,
        default_rotary_factor=DEFAULT_ROTARY_FACTOR,
        sliding_windows=(None,) * hf.integer("num_hidden_layers"),
        qkv_bias=hf.flag("attention_bias", True),
    )
    return replace(config, has_fused_gate_up=True, is_rope_interleaved=True)


def read_glm4(hf: HfConfig) -> LlamaConfig:
    """Return a Glm4ForCausalLM configuration; see ModelFamily."""
    return replace(read_glm(hf), norms_after=("post_self_attn_layernorm", "post_mlp_layernorm"))
