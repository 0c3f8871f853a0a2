"""Llama and Mistral: the plain rotary decoder, with Mistral's sliding window over every layer."""

from worker_svc.layers.rope_scaling import RopeParameters
from worker_svc.layers.rotary_decoder import RotaryDecoderConfig
from worker_svc.loading.hf_config import HfConfig

DEFAULT_LLAMA_POSITIONS = 2048
DEFAULT_MISTRAL_POSITIONS = 131_072
DEFAULT_MISTRAL_KV_HEADS = 8
DEFAULT_RMS_NORM_EPS = 1e-6


def read_llama(hf: HfConfig) -> RotaryDecoderConfig:
    """Return the decoder of a LlamaForCausalLM configuration.

    Raises:
        ModelLoadError: a key is missing, wrong or not served.
    """
    num_layers = hf.integer("num_hidden_layers")
    num_heads = hf.integer("num_attention_heads")
    has_attention_bias = hf.flag("attention_bias", False)
    return _config(
        hf,
        num_kv_heads=hf.integer("num_key_value_heads", num_heads),
        default_positions=DEFAULT_LLAMA_POSITIONS,
        attention_bias=has_attention_bias,
        mlp_bias=hf.flag("mlp_bias", False),
        sliding_windows=(None,) * num_layers,
    )


def read_mistral(hf: HfConfig) -> RotaryDecoderConfig:
    """Return the decoder of a MistralForCausalLM configuration.

    Raises:
        ModelLoadError: a key is missing, wrong or not served.
    """
    window = hf.integer("sliding_window") if "sliding_window" in hf else None
    return _config(
        hf,
        num_kv_heads=hf.integer("num_key_value_heads", DEFAULT_MISTRAL_KV_HEADS),
        default_positions=DEFAULT_MISTRAL_POSITIONS,
        attention_bias=False,
        mlp_bias=False,
        sliding_windows=(window,) * hf.integer("num_hidden_layers"),
    )


def _config(
    hf: HfConfig,
    *,
    num_kv_heads: int,
    default_positions: int,
    attention_bias: bool,
    mlp_bias: bool,
    sliding_windows: tuple[int | None, ...],
) -> RotaryDecoderConfig:
    hidden_size = hf.integer("hidden_size")
    num_heads = hf.integer("num_attention_heads")
    max_positions = hf.integer("max_position_embeddings", default_positions)
    return RotaryDecoderConfig(
        vocab_size=hf.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=hf.integer("intermediate_size"),
        num_layers=len(sliding_windows),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=hf.integer("head_dim", max(hidden_size // num_heads, 1)),
        rms_norm_eps=hf.number("rms_norm_eps", DEFAULT_RMS_NORM_EPS),
        activation=hf.text("hidden_act", "silu"),
        rope=RopeParameters.read(hf, max_positions),
        tie_word_embeddings=hf.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=mlp_bias,
        has_qk_norm=False,
        sliding_windows=sliding_windows,
    )
