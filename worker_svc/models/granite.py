"""Granite: Llama with factors of embeddings, dot products, residuals and logits."""

from dataclasses import replace

from worker_svc.loading.hf_config import HfConfig
from worker_svc.models.llama import LlamaConfig, read_llama


def read_granite(hf: HfConfig) -> LlamaConfig:
    """Return a GraniteForCausalLM configuration; see ModelFamily."""
    divisor = hf.number("logits_scaling", 1.0)
    if divisor == 0.0:
        raise hf.error("logits_scaling", "must not be 0")
    return replace(
        read_llama(hf),
        embedding_multiplier=hf.number("embedding_multiplier", 1.0),
        attention_multiplier=hf.number("attention_multiplier", 1.0),
        residual_multiplier=hf.number("residual_multiplier", 1.0),
        logit_scale=1.0 / divisor,
    )
