"""Qwen2: the rotary decoder with biased query, key and value, and windows in its upper layers."""

from worker_svc.layers.rope_scaling import RopeParameters
from worker_svc.layers.rotary_decoder import RotaryDecoderConfig
from worker_svc.loading.hf_config import HfConfig
from worker_svc.models.sliding_windows import read_sliding_windows

DEFAULT_POSITIONS = 32_768
DEFAULT_RMS_NORM_EPS = 1e-6


def read_qwen2(hf: HfConfig) -> RotaryDecoderConfig:
    """Return the decoder of a Qwen2ForCausalLM configuration.

    Raises:
        ModelLoadError: a key is missing, wrong or not served.
    """
    hidden_size = hf.integer("hidden_size")
    num_heads = hf.integer("num_attention_heads")
    num_layers = hf.integer("num_hidden_layers")
    max_positions = hf.integer("max_position_embeddings", DEFAULT_POSITIONS)
    return RotaryDecoderConfig(
        vocab_size=hf.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=hf.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=hf.integer("num_key_value_heads", num_heads),
        head_dim=hf.integer("head_dim", max(hidden_size // num_heads, 1)),
        rms_norm_eps=hf.number("rms_norm_eps", DEFAULT_RMS_NORM_EPS),
        activation=hf.text("hidden_act", "silu"),
        rope=RopeParameters.read(hf, max_positions),
        tie_word_embeddings=hf.flag("tie_word_embeddings", False),
        qkv_bias=True,
        output_bias=False,
        mlp_bias=False,
        has_qk_norm=False,
        sliding_windows=read_sliding_windows(hf, num_layers),
    )
