"""Qwen3: Llama with a norm on each head's query and key, and its own head size."""

from worker_svc.loading.hf_config import HfConfig
from worker_svc.models.llama import LlamaConfig, read_llama_like
from worker_svc.models.sliding_windows import read_sliding_windows

DEFAULT_POSITIONS = 32_768
DEFAULT_HEAD_DIM = 128


def read_qwen3(hf: HfConfig, default_head_dim: int | None = DEFAULT_HEAD_DIM) -> LlamaConfig:
    """Return a Qwen3ForCausalLM configuration; see ModelFamily, and read_llama_like."""
    has_attention_bias = hf.flag("attention_bias", False)
    return read_llama_like(
        hf,
        default_positions=DEFAULT_POSITIONS,
        default_head_dim=default_head_dim,
        sliding_windows=read_sliding_windows(hf, hf.integer("num_hidden_layers")),
        qkv_bias=has_attention_bias,
        output_bias=has_attention_bias,
        has_qk_norm=True,
    )
