"""OLMo 2: Llama with norms after attention and MLP, and a norm over all heads together."""

from dataclasses import replace

from worker_svc.loading.hf_config import HfConfig
from worker_svc.models.llama import LlamaConfig, read_llama_like

DEFAULT_POSITIONS = 2048
DEFAULT_RMS_NORM_EPS = 1e-5


def read_olmo2(hf: HfConfig) -> LlamaConfig:
    """Return an Olmo2ForCausalLM configuration; see ModelFamily."""
    has_attention_bias = hf.flag("attention_bias", False)
    config = read_llama_like(
        hf,
        default_positions=DEFAULT_POSITIONS,
        default_norm_eps=DEFAULT_RMS_NORM_EPS,
        sliding_windows=(None,) * hf.integer("num_hidden_layers"),
        qkv_bias=has_attention_bias,
        output_bias=has_attention_bias,
    )
    return replace(
        config,
        has_wide_qk_norm=True,
        norms_before=None,
        norms_after=("post_attention_layernorm", "post_feedforward_layernorm"),
    )
