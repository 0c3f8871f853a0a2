"""Kinds of layers of published checkpoints, of which tools.architectures makes its tiny models.

No hub is asked: what a checkpoint's config.json says was read in packages and repositories that
keep it. Of each one, the keys that differ from the defaults of `transformers` and name kinds of
layers; sizes are cut anyway. The documentation of `transformers` names kinds and seldom numbers:
where it does not say in which order layers stand or how many experts there are, some are chosen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint whose kinds of layers are known.

    Attributes:
        checkpoint: its name on the hub.
        source: where its configuration was read.
        keys: of config.json, those that differ from the defaults and name kinds of layers.
    """

    checkpoint: str
    source: str
    keys: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"`{self.checkpoint}` ({self.source})"


_AICONFIGURATOR = "aiconfigurator-core 0.12.0"
_DOCS = "transformers' documentation"
_EXECUTORCH = "pytorch/executorch"
_LITGPT = "litgpt 0.5.13"
_MAXTEXT = "AI-Hypercomputer/maxtext"
_MEGATRON = "megatron-bridge 0.3.1"
_MLC = "mlc-ai/mlc-llm"
_MLX = "mlx-lm 0.32.2"
_TENSORRT = "NVIDIA/TensorRT-LLM"

_SLIDING, _FULL, _CONV, _LINEAR = "sliding_attention", "full_attention", "conv", "linear_attention"
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_DEEPSEEK_YARN = {
    "rope_type": "yarn",
    "factor": 40.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
# As many factors as small heads have frequencies.
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "short_mscale": 1.243163121016122,
    "long_mscale": 1.243163121016122,
    "original_max_position_embeddings": 4096,
}
_GEMMA4_26B = {
    "attention_k_eq_v": True,
    "enable_moe_block": True,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 0,
    "moe_intermediate_size": 704,
    "num_experts": 128,
    "num_global_key_value_heads": 2,
    "sliding_window": 1024,
    "top_k_experts": 8,
    "use_bidirectional_attention": "vision",
}
_LLAMA4_SCOUT = {"rope_scaling": _LLAMA3 | {"factor": 16.0, "high_freq_factor": 1.0}}
_QWEN35_ROPE = {
    "rope_type": "default",
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "mrope_interleaved": True,
    "mrope_section": [11, 11, 10],
}

PUBLISHED: dict[str, Published] = {
    "afmoe": Published("arcee-ai/Trinity-Mini", _DOCS),
    "cohere": Published("CohereForAI/aya-23-8B", _MLC),
    "cohere2": Published("CohereLabs/c4ai-command-r7b-12-2024", _DOCS),
    "cohere2_moe": Published("CohereLabs/command-a-plus-05-2026", _DOCS, {"num_shared_experts": 1}),
    "dbrx": Published(
        "transformers-community/dbrx-instruct",
        _DOCS,
        {"ffn_config": {"moe_num_experts": 16, "moe_top_k": 4}},
    ),
    "deepseek_v2": Published(
        "deepseek-ai/DeepSeek-V2-Lite",
        _MAXTEXT,
        {
            "first_k_dense_replace": 1,
            "n_group": 1,
            "num_experts_per_tok": 6,
            "q_lora_rank": None,
            "rope_scaling": _DEEPSEEK_YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
            "topk_group": 1,
        },
    ),
    "deepseek_v3": Published(
        "deepseek-ai/DeepSeek-V3", _AICONFIGURATOR, {"rope_scaling": _DEEPSEEK_YARN}
    ),
    "deepseek_v32": Published(
        "deepseek-ai/DeepSeek-V3.2", _AICONFIGURATOR, {"rope_scaling": _DEEPSEEK_YARN}
    ),
    "deepseek_v4": Published(
        "deepseek-ai/DeepSeek-V4-Flash",
        _AICONFIGURATOR,
        {
            "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 16.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "original_max_position_embeddings": 65536,
            },
        },
    ),
    "dots1": Published(
        "rednote-hilab/dots.llm1.base",
        _DOCS,
        {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    ),
    "exaone4": Published(
        "LGAI-EXAONE/EXAONE-4.0-32B",
        _TENSORRT,
        {"rope_scaling": _LLAMA3 | {"factor": 16.0}},
    ),
    "exaone_moe": Published(
        "LGAI-EXAONE/K-EXAONE-236B-A23B",
        _TENSORRT,
        {"num_experts": 128},
    ),
    "falcon": Published("tiiuae/falcon-7b", _LITGPT),
    "falcon_h1": Published("tiiuae/Falcon-H1-7B-Instruct", _DOCS),
    "flex_olmo": Published("allenai/FlexOlmo-7x7B-1T", _DOCS),
    "gemma": Published("google/gemma-2b", _MLC, {"num_key_value_heads": 1}),
    "gemma2": Published("google/gemma-2-2b", _MLC),
    "gemma3": Published(
        "google/gemma-3-4b-it",
        _MAXTEXT,
        {
            "text_config": {
                "model_type": "gemma3_text",
                "sliding_window": 1024,
                "rope_parameters": {
                    _SLIDING: {"rope_type": "default", "rope_theta": 1e4},
                    _FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                },
            }
        },
    ),
    "gemma3_text": Published("google/gemma-3-1b-it", _MLC, {"sliding_window": 512}),
    "gemma3n": Published("google/gemma-3n-E4B-it", _DOCS),
    "gemma3n_text": Published("google/gemma-3n-E4B-it", _DOCS),
    "gemma4": Published(
        "google/gemma-4-26B-A4B",
        _AICONFIGURATOR,
        {"text_config": {"model_type": "gemma4_text", **_GEMMA4_26B}},
    ),
    "gemma4_text": Published("google/gemma-4-26B-A4B", _AICONFIGURATOR, _GEMMA4_26B),
    "glm4_moe": Published(
        "zai-org/GLM-4.5",
        _MEGATRON,
        {"attention_bias": True, "first_k_dense_replace": 3, "use_qk_norm": True},
    ),
    "glm_moe_dsa": Published(
        "zai-org/GLM-5.2",
        _AICONFIGURATOR,
        {"indexer_types": ["full"] * 3 + (["shared"] * 3 + ["full"]) * 18 + ["shared"] * 3},
    ),
    "gpt2": Published("openai-community/gpt2", _MLC),
    "gpt_bigcode": Published("bigcode/gpt_bigcode-santacoder", _MLC),
    "gpt_neox": Published("EleutherAI/pythia-1b", _LITGPT),
    "gpt_oss": Published(
        "openai/gpt-oss-20b", _AICONFIGURATOR, {"num_hidden_layers": 24, "num_local_experts": 32}
    ),
    "gptj": Published("EleutherAI/gpt-j-6b", _MLC),
    "granitemoehybrid": Published(
        "ibm-granite/granite-4.0-tiny-preview",
        _DOCS,
        {"layer_types": [_LINEAR, _LINEAR, _LINEAR, _FULL] * 8},
    ),
    "granitemoeshared": Published(
        "ibm-research/moe-7b-1b-active-shared-experts", _DOCS, {"shared_intermediate_size": 1024}
    ),
    "hunyuan_v1_moe": Published(
        "tencent/Hunyuan-A13B-Instruct", _DOCS, {"num_experts": 64, "moe_topk": 8}
    ),
    "hy_v3": Published("tencent/HY3-Preview", _DOCS),
    "jamba": Published("ai21labs/Jamba-v0.1", _DOCS),
    "jetmoe": Published("jetmoe/jetmoe-8b", _DOCS),
    "kimi_linear": Published("moonshotai/Kimi-Linear-48B-A3B-Instruct", _DOCS),
    "kolibri1": Published("Aleph-Alpha/Kolibri-1", _DOCS),
    "laguna": Published(
        "poolside/Laguna-XS.2-FP8",
        "ai-dynamo/aiconfigurator",
        {
            "layer_types": [_FULL, _SLIDING, _SLIDING, _SLIDING] * 10,
            "num_attention_heads_per_layer": [48, 64, 64, 64] * 10,
            "moe_routed_scaling_factor": 2.5,
        },
    ),
    "lfm2": Published(
        "LiquidAI/LFM2-1.2B",
        _EXECUTORCH,
        {
            "num_hidden_layers": 16,
            "layer_types": [*[_CONV, _CONV, _FULL] * 3, *[_CONV, _FULL] * 3, _CONV],
        },
    ),
    "lfm2_moe": Published(
        "LiquidAI/LFM2-8B-A1B", _DOCS, {"layer_types": [_CONV, _CONV, _FULL, _CONV] * 8}
    ),
    "llama": Published("meta-llama/Meta-Llama-3.1-8B", _AICONFIGURATOR, {"rope_scaling": _LLAMA3}),
    "llama4": Published(
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        _AICONFIGURATOR,
        {"text_config": {"model_type": "llama4_text", **_LLAMA4_SCOUT}},
    ),
    "llama4_text": Published(
        "meta-llama/Llama-4-Scout-17B-16E-Instruct", _AICONFIGURATOR, _LLAMA4_SCOUT
    ),
    "longcat_flash": Published("meituan-longcat/LongCat-Flash-Chat", _DOCS),
    "mellum": Published(
        "JetBrains/Mellum2-12B-A2.5B-Base",
        _DOCS,
        {"layer_types": [_SLIDING, _SLIDING, _SLIDING, _FULL] * 7},
    ),
    "mimo_v2_flash": Published(
        "XiaomiMiMo/MiMo-V2-Flash",
        _AICONFIGURATOR,
        {"sliding_window": 128},
    ),
    "minimax": Published(
        "MiniMaxAI/MiniMax-Text-01",
        _DOCS,
        {
            "num_hidden_layers": 80,
            "num_local_experts": 32,
            "layer_types": [*[_LINEAR] * 7, _FULL] * 10,
        },
    ),
    "minimax_m2": Published("MiniMaxAI/MiniMax-M2.5", _AICONFIGURATOR, {"rotary_dim": 64}),
    "minimax_m3_vl_text": Published(
        "MiniMaxAI/MiniMax-M3",
        _AICONFIGURATOR,
        {
            "moe_layer_freq": [0] * 3 + [1] * 57,
            "sparse_attention_config": {
                "sparse_attention_freq": [0] * 3 + [1] * 57,
                "sparse_block_size": 128,
                "sparse_index_dim": 128,
                "sparse_local_block": 1,
                "sparse_num_index_heads": 4,
                "sparse_topk_blocks": 16,
            },
        },
    ),
    "ministral": Published(
        "mistralai/Ministral-8B-Instruct-2410",
        _DOCS,
        {"layer_types": [_FULL, _SLIDING, _SLIDING, _SLIDING] * 8},
    ),
    "ministral3": Published(
        "mistralai/Ministral-3-3B-Reasoning-2512", _MLC, {"tie_word_embeddings": True}
    ),
    "mistral": Published("mistralai/Mistral-7B-v0.1", _LITGPT),
    "mixtral": Published("mistralai/Mixtral-8x7B-v0.1", _AICONFIGURATOR),
    "modernbert-decoder": Published("jhu-clsp/ettin-decoder-17m", _DOCS),
    "nemotron_h": Published(
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        _AICONFIGURATOR,
        {
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            "n_routed_experts": 128,
            "num_experts_per_tok": 6,
        },
    ),
    "olmo": Published("allenai/OLMo-1B-hf", _LITGPT),
    "olmo2": Published("allenai/OLMo-2-1124-7B", _LITGPT),
    "olmo_hybrid": Published("allenai/Olmo-Hybrid-7B", _DOCS),
    "olmoe": Published("allenai/OLMoE-1B-7B-0125", _MEGATRON),
    "persimmon": Published("adept/persimmon-8b-base", _DOCS),
    "phi": Published("microsoft/phi-1_5", _MLC),
    "phi3": Published("microsoft/Phi-3-mini-4k-instruct", _TENSORRT, {"sliding_window": 2047}),
    "phimoe": Published(
        "microsoft/Phi-3.5-MoE-instruct",
        _MLX,
        {"attention_bias": True, "lm_head_bias": True, "rope_parameters": _LONGROPE},
    ),
    "qwen2": Published("Qwen/Qwen2-7B-Instruct", _MLC),
    "qwen2_moe": Published("Qwen/Qwen2-57B-A14B", _TENSORRT),
    "qwen3": Published("Qwen/Qwen3-8B", _AICONFIGURATOR),
    "qwen3_5": Published(
        "Qwen/Qwen3.5-27B",
        _AICONFIGURATOR,
        {"text_config": {"model_type": "qwen3_5_text", "rope_parameters": _QWEN35_ROPE}},
    ),
    "qwen3_5_moe": Published(
        "Qwen/Qwen3.5-35B-A3B",
        _AICONFIGURATOR,
        {"text_config": {"model_type": "qwen3_5_moe_text", "rope_parameters": _QWEN35_ROPE}},
    ),
    "qwen3_5_moe_text": Published(
        "Qwen/Qwen3.5-35B-A3B", _AICONFIGURATOR, {"rope_parameters": _QWEN35_ROPE}
    ),
    "qwen3_5_text": Published(
        "Qwen/Qwen3.5-27B", _AICONFIGURATOR, {"rope_parameters": _QWEN35_ROPE}
    ),
    "qwen3_moe": Published("Qwen/Qwen3-30B-A3B", _AICONFIGURATOR, {"norm_topk_prob": True}),
    "qwen3_next": Published("Qwen/Qwen3-Next-80B-A3B-Instruct", _MEGATRON),
    "recurrent_gemma": Published("google/recurrentgemma-2b", _DOCS),
    "smollm3": Published("HuggingFaceTB/SmolLM3-3B", _EXECUTORCH),
    "stablelm": Published("stabilityai/stablelm-3b-4e1t", _LITGPT),
    "starcoder2": Published("bigcode/starcoder2-7b", _TENSORRT, {"sliding_window": 4096}),
    "vaultgemma": Published("google/vaultgemma-1b", _DOCS, {"layer_types": [_FULL] * 26}),
    "zamba2": Published("Zyphra/Zamba2-2.7B", _DOCS),
}
"""Of each model type that such a checkpoint is known of."""
