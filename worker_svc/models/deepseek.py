"""DeepSeek-V2 and V3: latent attention, and experts of which some are shared by all tokens.

Sources: DeepSeek-V2, 2024; DeepSeek-V3, 2024.
"""

from dataclasses import dataclass
from functools import partial

from worker_svc.layers.attention import PagedAttention
from worker_svc.layers.chain import sum_of
from worker_svc.layers.decoder_stack import DecoderConfig, DecoderStack
from worker_svc.layers.expert_routing import ExpertRouting, Scores
from worker_svc.layers.gated_mlp import GatedMLP
from worker_svc.layers.latent_attention import LatentAttention, LatentSizes
from worker_svc.layers.linear import (
    HEAD_DIM_STEP,
    MAX_LATENT_HEAD_DIM,
    HeadShare,
    RowParallelLinear,
)
from worker_svc.layers.moe import MoEConfig, SparseMoE, are_experts_on_device
from worker_svc.layers.norm import RMSNorm
from worker_svc.layers.residual import MLP, DecoderLayer, SequentialLayer
from worker_svc.layers.rope_scaling import RopeParameters
from worker_svc.layers.rotary import RotaryEmbedding
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup

_GREEDY, _GROUPS, _GROUPS_WITH_BIAS = "greedy", "group_limited_greedy", "noaux_tc"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekConfig(DecoderConfig):
    """Sizes and switches of a DeepSeek.

    Heads are those of attention over latents: one for keys and values, of the size of a cached row.

    Attributes:
        rope: of the rotary embedding.
        is_rope_interleaved: whether neighbouring features are rotated together.
        latent: of attention.
        attention_bias: whether the layers that make latents and the output projection have one.
        mlp_bias: whether the layers of MLPs have one, those of routed experts apart.
        moe: of the layers that have experts.
        num_shared_experts: experts, as large as the others, that every token goes to; may be 0.
    """

    rope: RopeParameters
    is_rope_interleaved: bool
    latent: LatentSizes
    attention_bias: bool
    mlp_bias: bool
    moe: MoEConfig
    num_shared_experts: int

    @property
    def value_size(self) -> int:
        """See ModelConfig."""
        return self.latent.kv_lora_rank


def read_deepseek_v2(hf: HfConfig) -> DeepseekConfig:
    """Return a DeepseekV2ForCausalLM configuration; see ModelFamily."""
    method = _one_of(hf, "topk_method", _GREEDY, _GREEDY, _GROUPS)
    _one_of(hf, "scoring_func", "softmax", "softmax")
    if hf.flag("norm_topk_prob", False):
        raise hf.error(
            "norm_topk_prob",
            "must be false for DeepSeek-V2, whose own code and transformers take it differently, "
            "got true",
        )
    has_groups = method == _GROUPS
    routing = ExpertRouting(
        num_experts=_num_experts(hf, 64),
        top_k=hf.integer("num_experts_per_tok"),
        normalizes=False,
        scale=hf.number("routed_scaling_factor", 1.0),
        num_groups=hf.integer("n_group") if has_groups else 1,
        topk_group=hf.integer("topk_group") if has_groups else 1,
        num_of_group=1,
    )
    return _read(
        hf,
        routing,
        default_positions=2048,
        default_dense_layers=0,
        default_inner_size=1407,
        default_shared_experts=2,
        is_rope_interleaved=True,
        mlp_bias=hf.flag("mlp_bias", False),
    )


def read_deepseek_v3(hf: HfConfig) -> DeepseekConfig:
    """Return a DeepseekV3ForCausalLM configuration; see ModelFamily."""
    _one_of(hf, "topk_method", _GROUPS_WITH_BIAS, _GROUPS_WITH_BIAS)
    scores: Scores = "sigmoid"
    _one_of(hf, "scoring_func", scores, scores)
    routing = ExpertRouting(
        num_experts=_num_experts(hf, 256),
        top_k=hf.integer("num_experts_per_tok", 8),
        normalizes=hf.flag("norm_topk_prob", True),
        scores=scores,
        scale=hf.number("routed_scaling_factor", 2.5),
        num_groups=hf.integer("n_group", 8),
        topk_group=hf.integer("topk_group", 4),
        num_of_group=2,
    )
    return _read(
        hf,
        routing,
        default_positions=4096,
        default_dense_layers=3,
        default_inner_size=2048,
        default_shared_experts=1,
        is_rope_interleaved=hf.flag("rope_interleave", True),
        mlp_bias=False,
    )


def predicted_layers(hf: HfConfig) -> tuple[str, ...]:
    """Return what leaves out the layers behind the last, which predict further tokens."""
    first = hf.integer("num_hidden_layers")
    count = hf.integer("num_nextn_predict_layers", 1, least=0)
    return tuple(rf"^(model\.)?layers\.{first + each}\." for each in range(count))


def _one_of(hf: HfConfig, key: str, default: str, *served: str) -> str:
    value = hf.text(key, default)
    if value not in served:
        raise hf.error(key, f"must be {' or '.join(served)}, got {value!r}")
    return value


def _num_experts(hf: HfConfig, default: int) -> int:
    if hf.is_null("n_routed_experts"):
        raise hf.error("n_routed_experts", "must be a positive integer, got null")
    return hf.integer("n_routed_experts", default)


def _latent_sizes(hf: HfConfig, hidden_size: int) -> LatentSizes:
    kv_lora_rank = hf.integer("kv_lora_rank", 512)
    qk_rope_head_dim = hf.integer("qk_rope_head_dim", 64)
    step, most = HEAD_DIM_STEP, MAX_LATENT_HEAD_DIM
    if kv_lora_rank % step != 0 or kv_lora_rank + step > most:
        raise hf.error(
            "kv_lora_rank", f"must be a multiple of {step} up to {most - step}, got {kv_lora_rank}"
        )
    if qk_rope_head_dim % step != 0 or kv_lora_rank + qk_rope_head_dim > most:
        raise hf.error(
            "qk_rope_head_dim",
            f"must be a multiple of {step} up to {most - kv_lora_rank}, which kv_lora_rank "
            f"({kv_lora_rank}) leaves of {most}, got {qk_rope_head_dim}",
        )
    return LatentSizes(
        hidden_size=hidden_size,
        q_lora_rank=None if hf.is_null("q_lora_rank") else hf.integer("q_lora_rank", 1536),
        kv_lora_rank=kv_lora_rank,
        qk_nope_head_dim=hf.integer("qk_nope_head_dim", 128),
        qk_rope_head_dim=qk_rope_head_dim,
        v_head_dim=hf.integer("v_head_dim", 128),
    )


def _read(
    hf: HfConfig,
    routing: ExpertRouting,
    *,
    default_positions: int,
    default_dense_layers: int,
    default_inner_size: int,
    default_shared_experts: int,
    is_rope_interleaved: bool,
    mlp_bias: bool,
) -> DeepseekConfig:
    """Return a configuration; what is given is where the two families differ."""
    num_heads = hf.integer("num_attention_heads")
    num_kv_heads = hf.integer("num_key_value_heads", num_heads)
    if num_kv_heads != num_heads:
        raise hf.error(
            "num_key_value_heads", f"must be num_attention_heads ({num_heads}), got {num_kv_heads}"
        )
    num_layers = hf.integer("num_hidden_layers")
    first_sparse = hf.integer("first_k_dense_replace", default_dense_layers, least=0)
    frequency = hf.integer("moe_layer_freq", 1)
    rope = RopeParameters.read(hf, hf.integer("max_position_embeddings", default_positions))
    hidden_size = hf.integer("hidden_size")
    latent = _latent_sizes(hf, hidden_size)
    num_shared_experts = 0
    if not hf.is_null("n_shared_experts"):
        num_shared_experts = hf.integer("n_shared_experts", default_shared_experts, least=0)
    return DeepseekConfig(
        vocab_size=hf.integer("vocab_size"),
        max_position_embeddings=rope.max_position_embeddings,
        max_context=rope.max_context,
        hidden_size=hidden_size,
        intermediate_size=hf.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=1,
        head_dim=latent.row,
        norm_eps=hf.number("rms_norm_eps", 1e-6),
        activation=hf.text("hidden_act", "silu"),
        tie_word_embeddings=hf.flag("tie_word_embeddings", False),
        rope=rope,
        is_rope_interleaved=is_rope_interleaved,
        latent=latent,
        attention_bias=hf.flag("attention_bias", False),
        mlp_bias=mlp_bias,
        moe=MoEConfig(
            routing=routing,
            intermediate_size=hf.integer("moe_intermediate_size", default_inner_size),
            scope="mlp",
            names=("gate_proj", "up_proj", "down_proj"),
            dense_layers=frozenset(
                index
                for index in range(num_layers)
                if index < first_sparse or index % frequency != 0
            ),
            has_float_logits=True,
            has_choice_bias=routing.scores == "sigmoid",
        ),
        num_shared_experts=num_shared_experts,
    )


def build_deepseek(
    config: DeepseekConfig, weights: Weights, parallel: ParallelGroup, max_model_len: int
) -> DecoderStack:
    """Return the model with its weights loaded; see ModelFamily."""
    body = weights.scope_if_present("model", "embed_tokens.weight")
    rotary = RotaryEmbedding(
        config.rope,
        config.latent.qk_rope_head_dim,
        max_model_len,
        weights.device,
        is_neox=not config.is_rope_interleaved,
    )
    return DecoderStack(
        config,
        parallel,
        weights,
        body,
        partial(_layer, config, rotary),
        RMSNorm(body, "norm", config.hidden_size, config.norm_eps),
        embedding="embed_tokens",
        layers="layers",
        is_capturable=are_experts_on_device(config.moe, weights.device, weights.dtype),
    )


def _layer(
    config: DeepseekConfig,
    rotary: RotaryEmbedding,
    weights: Weights,
    heads: HeadShare,
    layer_index: int,
) -> DecoderLayer:
    size, eps, latent = config.hidden_size, config.norm_eps, config.latent
    attn = weights.scope("self_attn")
    width = heads.total_heads * latent.v_head_dim
    attention = LatentAttention(
        attn,
        latent,
        heads,
        rotary,
        PagedAttention(layer_index, latent.qk_head_dim**-0.5 * config.rope.logit_factor),
        RowParallelLinear(attn, "o_proj", width, size, heads.parallel, bias=config.attention_bias),
        bias=config.attention_bias,
    )
    return SequentialLayer(
        RMSNorm(weights, "input_layernorm", size, eps),
        attention,
        RMSNorm(weights, "post_attention_layernorm", size, eps),
        _mlp(config, weights, heads.parallel, layer_index),
    )


def _mlp(
    config: DeepseekConfig, weights: Weights, parallel: ParallelGroup, layer_index: int
) -> MLP:
    def gated(scope: Weights, intermediate_size: int) -> GatedMLP:
        return GatedMLP(
            scope,
            config.hidden_size,
            intermediate_size,
            parallel,
            activation=config.activation,
            bias=config.mlp_bias,
        )

    block, moe = weights.scope("mlp"), config.moe
    if layer_index in moe.dense_layers:
        return gated(block, config.intermediate_size)
    routed = SparseMoE(moe, weights, config.hidden_size, parallel, config.activation)
    if config.num_shared_experts == 0:
        return routed
    shared = gated(block.scope("shared_experts"), config.num_shared_experts * moe.intermediate_size)
    return sum_of(routed, shared)
