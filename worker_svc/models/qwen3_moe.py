"""Qwen3-MoE: Qwen3 with experts in the place of most MLPs."""

from dataclasses import replace

from worker_svc.layers.expert_routing import ExpertRouting
from worker_svc.layers.moe import MoEConfig
from worker_svc.loading.hf_config import HfConfig
from worker_svc.models.llama import LlamaConfig
from worker_svc.models.qwen3 import read_qwen3


def read_qwen3_moe(hf: HfConfig) -> LlamaConfig:
    """Return a Qwen3MoeForCausalLM configuration; see ModelFamily."""
    config = read_qwen3(hf, default_head_dim=None)
    sparse_step = hf.integer("decoder_sparse_step", 1)
    listed = hf.numbers("mlp_only_layers") if "mlp_only_layers" in hf else []
    dense = {int(index) for index in listed}
    dense |= {index for index in range(config.num_layers) if (index + 1) % sparse_step != 0}
    # transformers 5 writes the first name, the published checkpoints have the second.
    key = "num_local_experts" if "num_local_experts" in hf else "num_experts"
    moe = MoEConfig(
        routing=ExpertRouting(
            num_experts=hf.integer(key, 128),
            top_k=hf.integer("num_experts_per_tok", 8),
            normalizes=hf.flag("norm_topk_prob", False),
        ),
        intermediate_size=hf.integer("moe_intermediate_size", 768),
        scope="mlp",
        names=("gate_proj", "up_proj", "down_proj"),
        dense_layers=frozenset(dense),
    )
    return replace(config, moe=moe)
