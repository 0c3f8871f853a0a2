"""Qwen2: Llama with biased query, key and value, and windows in its upper layers."""

from worker_svc.loading.hf_config import HfConfig
from worker_svc.models.llama import LlamaConfig, read_llama_like
from worker_svc.models.sliding_windows import read_sliding_windows

DEFAULT_POSITIONS = 32_768


def read_qwen2(hf: HfConfig) -> LlamaConfig:
    """Return a Qwen2ForCausalLM configuration; see ModelFamily."""
    return read_llama_like(
        hf,
        default_positions=DEFAULT_POSITIONS,
        sliding_windows=read_sliding_windows(hf, hf.integer("num_hidden_layers")),
        qkv_bias=True,
    )
