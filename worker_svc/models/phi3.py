"""Phi-3 and Phi-4: Llama with its projections stored fused, maybe partial rotary."""

from dataclasses import replace

from worker_svc.layers.rope_scaling import RopeParameters
from worker_svc.loading.hf_config import HfConfig
from worker_svc.models.llama import LlamaConfig

DEFAULT_POSITIONS = 4096
DEFAULT_RMS_NORM_EPS = 1e-5


def read_phi3(hf: HfConfig) -> LlamaConfig:
    """Return a Phi3ForCausalLM configuration; see ModelFamily."""
    hidden_size = hf.integer("hidden_size", 3072)
    num_heads = hf.integer("num_attention_heads", 32)
    window = hf.integer("sliding_window") if "sliding_window" in hf else None
    num_layers = hf.integer("num_hidden_layers", 32)
    rope = _read_rope(hf)
    return LlamaConfig(
        vocab_size=hf.integer("vocab_size", 32064),
        max_position_embeddings=rope.max_position_embeddings,
        max_context=rope.max_context,
        hidden_size=hidden_size,
        intermediate_size=hf.integer("intermediate_size", 8192),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=hf.integer("num_key_value_heads", num_heads),
        head_dim=hf.integer("head_dim", max(hidden_size // num_heads, 1)),
        norm_eps=hf.number("rms_norm_eps", DEFAULT_RMS_NORM_EPS),
        activation=hf.text("hidden_act", "silu"),
        tie_word_embeddings=hf.flag("tie_word_embeddings", False),
        rope=rope,
        sliding_windows=(window,) * num_layers,
        has_fused_qkv=True,
        has_fused_gate_up=True,
    )


def _read_rope(hf: HfConfig) -> RopeParameters:
    max_positions = hf.integer("max_position_embeddings", DEFAULT_POSITIONS)
    rope = RopeParameters.read(hf, max_positions, default_partial_factor=1.0)
    if rope.kind not in ("default", "longrope"):
        raise rope.section.error("rope_type", f"must be default or longrope, got {rope.kind!r}")
    # Phi-3 has this key outside the section, and a default for it.
    original = hf.integer("original_max_position_embeddings", DEFAULT_POSITIONS)
    return replace(rope, original_max_position_embeddings=original)
