"""Mixtral: Mistral with experts in the place of every MLP."""

from dataclasses import replace

from worker_svc.layers.expert_routing import ExpertRouting
from worker_svc.layers.moe import MoEConfig
from worker_svc.loading.hf_config import HfConfig
from worker_svc.models.llama import LlamaConfig, read_mistral


def read_mixtral(hf: HfConfig) -> LlamaConfig:
    """Return a MixtralForCausalLM configuration; see ModelFamily."""
    moe = MoEConfig(
        routing=ExpertRouting(
            num_experts=hf.integer("num_local_experts", 8),
            top_k=hf.integer("num_experts_per_tok", 2),
            normalizes=True,
        ),
        intermediate_size=hf.integer("intermediate_size"),
        scope="block_sparse_moe",
        names=("w1", "w3", "w2"),
    )
    return replace(read_mistral(hf), moe=moe)
