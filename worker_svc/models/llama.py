"""Llama and Mistral: RMS norms, rotary attention, gated MLP.

Many later families are this decoder with other switches, which their own files set.
"""

from dataclasses import dataclass
from functools import partial

from worker_svc.layers.attention import PagedAttention
from worker_svc.layers.chain import TensorFunction, chain, scaled_by
from worker_svc.layers.decoder_stack import DecoderConfig, DecoderStack
from worker_svc.layers.gated_mlp import GatedMLP
from worker_svc.layers.linear import HeadShare, QKVParallelLinear, RowParallelLinear
from worker_svc.layers.moe import MoEConfig, SparseMoE, are_experts_on_device
from worker_svc.layers.norm import AllHeadsRMSNorm, RMSNorm
from worker_svc.layers.residual import MLP, DecoderLayer, SequentialLayer
from worker_svc.layers.rope_scaling import RopeParameters
from worker_svc.layers.rotary import RotaryEmbedding
from worker_svc.layers.self_attention import SelfAttention
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup

DEFAULT_LLAMA_POSITIONS = 2048
DEFAULT_MISTRAL_POSITIONS = 131_072
DEFAULT_MISTRAL_KV_HEADS = 8
DEFAULT_RMS_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(DecoderConfig):
    """Sizes and switches of a Llama.

    Attributes:
        rope: of the rotary embedding.
        sliding_windows: [num_layers] tokens that each layer sees; None sees all.
        qkv_bias: whether query, key and value projections have a bias.
        output_bias: whether attention's output projection has one.
        mlp_bias: whether the MLP's layers have one.
        has_qk_norm: whether each head's query and key are normed before they are rotated.
        has_wide_qk_norm: whether query and key are normed before that, all heads together.
        has_fused_qkv: whether query, key and value are stored as one layer, qkv_proj.
        has_fused_gate_up: whether the MLP's gate and up are stored as one layer, gate_up_proj.
        is_rope_interleaved: whether neighbouring features are rotated together.
        norms_before: names of the norms of what attention and MLP read; None for none.
        norms_after: names of the norms of what they return; None for none.
        moe: of the layers that have experts in the place of one MLP; None where no layer has.
        embedding_multiplier: factor of embeddings.
        attention_multiplier: factor of the dot products; None for 1 / sqrt(head_dim).
        residual_multiplier: factor of what attention and MLP add to the stream.
        logit_scale: factor of the logits.
    """

    rope: RopeParameters
    sliding_windows: tuple[int | None, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    has_qk_norm: bool = False
    has_wide_qk_norm: bool = False
    has_fused_qkv: bool = False
    has_fused_gate_up: bool = False
    is_rope_interleaved: bool = False
    norms_before: tuple[str, str] | None = ("input_layernorm", "post_attention_layernorm")
    norms_after: tuple[str, str] | None = None
    moe: MoEConfig | None = None
    embedding_multiplier: float = 1.0
    attention_multiplier: float | None = None
    residual_multiplier: float = 1.0
    logit_scale: float = 1.0


def read_llama(hf: HfConfig) -> LlamaConfig:
    """Return a LlamaForCausalLM configuration; see ModelFamily."""
    has_attention_bias = hf.flag("attention_bias", False)
    return read_llama_like(
        hf,
        default_positions=DEFAULT_LLAMA_POSITIONS,
        sliding_windows=(None,) * hf.integer("num_hidden_layers"),
        qkv_bias=has_attention_bias,
        output_bias=has_attention_bias,
        mlp_bias=hf.flag("mlp_bias", False),
    )


def read_mistral(hf: HfConfig) -> LlamaConfig:
    """Return a MistralForCausalLM configuration; see ModelFamily."""
    window = hf.integer("sliding_window") if "sliding_window" in hf else None
    return read_llama_like(
        hf,
        default_positions=DEFAULT_MISTRAL_POSITIONS,
        default_kv_heads=DEFAULT_MISTRAL_KV_HEADS,
        sliding_windows=(window,) * hf.integer("num_hidden_layers"),
    )


def read_llama_like(
    hf: HfConfig,
    *,
    default_positions: int,
    sliding_windows: tuple[int | None, ...],
    default_kv_heads: int | None = None,
    default_head_dim: int | None = None,
    default_norm_eps: float = DEFAULT_RMS_NORM_EPS,
    default_rotary_factor: float | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    has_qk_norm: bool = False,
) -> LlamaConfig:
    """Return a configuration that names its sizes as Llama's does.

    Args:
        hf: to read.
        default_positions: max_position_embeddings where the configuration names none.
        sliding_windows: see LlamaConfig.
        default_kv_heads: where the configuration names none; None for as many as query heads.
        default_head_dim: where the configuration names none; None for hidden_size / num_heads.
        default_norm_eps: where the configuration names none.
        default_rotary_factor: share of a head that is rotated, where the configuration names none;
            None for families that rotate whole heads only.
        qkv_bias: see LlamaConfig.
        output_bias: see LlamaConfig.
        mlp_bias: see LlamaConfig.
        has_qk_norm: see LlamaConfig.

    Raises:
        ModelLoadError: a key is missing, wrong or not served.
    """
    hidden_size = hf.integer("hidden_size")
    num_heads = hf.integer("num_attention_heads")
    rope = RopeParameters.read(
        hf,
        hf.integer("max_position_embeddings", default_positions),
        default_partial_factor=default_rotary_factor,
    )
    return LlamaConfig(
        vocab_size=hf.integer("vocab_size"),
        max_position_embeddings=rope.max_position_embeddings,
        max_context=rope.max_context,
        hidden_size=hidden_size,
        intermediate_size=hf.integer("intermediate_size"),
        num_layers=len(sliding_windows),
        num_heads=num_heads,
        num_kv_heads=hf.integer("num_key_value_heads", default_kv_heads or num_heads),
        head_dim=hf.integer("head_dim", default_head_dim or max(hidden_size // num_heads, 1)),
        norm_eps=hf.number("rms_norm_eps", default_norm_eps),
        activation=hf.text("hidden_act", "silu"),
        tie_word_embeddings=hf.flag("tie_word_embeddings", False),
        rope=rope,
        sliding_windows=sliding_windows,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        has_qk_norm=has_qk_norm,
    )


def build_llama(
    config: LlamaConfig, weights: Weights, parallel: ParallelGroup, max_model_len: int
) -> DecoderStack:
    """Return the model with its weights loaded; see ModelFamily."""
    body = weights.scope_if_present("model", "embed_tokens.weight")
    rotary_dim = config.rope.rotary_dim(config.head_dim)
    rotary = RotaryEmbedding(
        config.rope,
        rotary_dim,
        max_model_len,
        weights.device,
        is_neox=not config.is_rope_interleaved,
    )
    multiplier = config.embedding_multiplier
    return DecoderStack(
        config,
        parallel,
        weights,
        body,
        partial(_layer, config, rotary),
        RMSNorm(body, "norm", config.hidden_size, config.norm_eps),
        embedding="embed_tokens",
        layers="layers",
        logit_scale=config.logit_scale,
        project_in=None if multiplier == 1.0 else scaled_by(multiplier),
        # Elsewhere it is decided on the host which experts run.
        is_capturable=config.moe is None
        or are_experts_on_device(config.moe, weights.device, weights.dtype),
    )


def _layer(
    config: LlamaConfig,
    rotary: RotaryEmbedding,
    weights: Weights,
    heads: HeadShare,
    layer_index: int,
) -> DecoderLayer:
    size, eps = config.hidden_size, config.norm_eps
    attn = weights.scope("self_attn")
    qkv = QKVParallelLinear(
        attn,
        size,
        heads,
        ("qkv_proj",) if config.has_fused_qkv else ("q_proj", "k_proj", "v_proj"),
        bias=config.qkv_bias,
    )
    width = heads.total_heads * heads.head_dim
    out: TensorFunction = RowParallelLinear(
        attn, "o_proj", width, size, heads.parallel, bias=config.output_bias
    )
    mlp = _mlp(config, weights, heads.parallel, layer_index)
    if config.norms_after is not None:
        after_attention, after_mlp = config.norms_after
        out = chain(out, RMSNorm(weights, after_attention, size, eps))
        mlp = chain(mlp, RMSNorm(weights, after_mlp, size, eps))
    if config.residual_multiplier != 1.0:
        out = chain(out, scaled_by(config.residual_multiplier))
        mlp = chain(mlp, scaled_by(config.residual_multiplier))
    scale = config.attention_multiplier
    attention = SelfAttention(
        qkv,
        PagedAttention(
            layer_index,
            heads.head_dim**-0.5 if scale is None else scale,
            config.sliding_windows[layer_index],
        ),
        out,
        rotary=rotary,
        qk_norms=_qk_norms(config, attn, heads),
    )
    if config.norms_before is None:
        return SequentialLayer(None, attention, None, mlp)
    before_attention, before_mlp = config.norms_before
    return SequentialLayer(
        RMSNorm(weights, before_attention, size, eps),
        attention,
        RMSNorm(weights, before_mlp, size, eps),
        mlp,
    )


def _qk_norms(
    config: LlamaConfig, attn: Weights, heads: HeadShare
) -> tuple[TensorFunction, TensorFunction] | None:
    dim, eps = heads.head_dim, config.norm_eps
    if config.has_qk_norm:
        return RMSNorm(attn, "q_norm", dim, eps), RMSNorm(attn, "k_norm", dim, eps)
    if config.has_wide_qk_norm:
        return (
            AllHeadsRMSNorm(
                attn, "q_norm", heads.total_heads, heads.heads, dim, eps, heads.parallel
            ),
            AllHeadsRMSNorm(
                attn, "k_norm", heads.total_kv_heads, heads.kv_heads, dim, eps, heads.parallel
            ),
        )
    return None


def _mlp(config: LlamaConfig, weights: Weights, parallel: ParallelGroup, layer_index: int) -> MLP:
    if config.moe is not None and layer_index not in config.moe.dense_layers:
        return SparseMoE(config.moe, weights, config.hidden_size, parallel, config.activation)
    return GatedMLP(
        weights.scope("mlp"),
        config.hidden_size,
        config.intermediate_size,
        parallel,
        activation=config.activation,
        bias=config.mlp_bias,
        is_fused=config.has_fused_gate_up,
    )
