"""Qwen3: the rotary decoder with a norm on each head's query and key, and its own head size."""

from worker_svc.layers.rope_scaling import RopeParameters
from worker_svc.layers.rotary_decoder import RotaryDecoderConfig
from worker_svc.loading.hf_config import HfConfig
from worker_svc.models.sliding_windows import read_sliding_windows

DEFAULT_POSITIONS = 32_768
DEFAULT_HEAD_DIM = 128
DEFAULT_RMS_NORM_EPS = 1e-6


def read_qwen3(hf: HfConfig) -> RotaryDecoderConfig:
    """Return the decoder of a Qwen3ForCausalLM configuration.

    Raises:
        ModelLoadError: a key is missing, wrong or not served.
    """
    num_heads = hf.integer("num_attention_heads")
    num_layers = hf.integer("num_hidden_layers")
    has_attention_bias = hf.flag("attention_bias", False)
    max_positions = hf.integer("max_position_embeddings", DEFAULT_POSITIONS)
    return RotaryDecoderConfig(
        vocab_size=hf.integer("vocab_size"),
        hidden_size=hf.integer("hidden_size"),
        intermediate_size=hf.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=hf.integer("num_key_value_heads", num_heads),
        head_dim=hf.integer("head_dim", DEFAULT_HEAD_DIM),
        rms_norm_eps=hf.number("rms_norm_eps", DEFAULT_RMS_NORM_EPS),
        activation=hf.text("hidden_act", "silu"),
        rope=RopeParameters.read(hf, max_positions),
        tie_word_embeddings=hf.flag("tie_word_embeddings", False),
        qkv_bias=has_attention_bias,
        output_bias=has_attention_bias,
        mlp_bias=False,
        has_qk_norm=True,
        sliding_windows=read_sliding_windows(hf, num_layers),
    )
