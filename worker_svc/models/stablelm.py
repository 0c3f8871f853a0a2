"""StableLM: layer norms, rotary over part of each head, gated MLP, maybe parallel residual."""

from dataclasses import dataclass
from functools import partial

import torch

from worker_svc.layers.attention import PagedAttention
from worker_svc.layers.decoder_stack import DecoderConfig, DecoderStack
from worker_svc.layers.gated_mlp import GatedMLP
from worker_svc.layers.linear import HeadShare, QKVParallelLinear, RowParallelLinear
from worker_svc.layers.norm import HeadsLayerNorm, LayerNorm
from worker_svc.layers.residual import DecoderLayer, ParallelLayer, SequentialLayer
from worker_svc.layers.rope_scaling import RopeParameters
from worker_svc.layers.rotary import RotaryEmbedding
from worker_svc.layers.self_attention import SelfAttention
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup

DEFAULT_ROTARY_FACTOR = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class StableLmConfig(DecoderConfig):
    """Sizes and switches of a StableLM.

    Attributes:
        rope: of the rotary embedding.
        parallel_residual: whether the MLP reads what attention reads.
        qkv_bias: whether query, key and value projections have a bias.
        has_qk_norm: whether each head's query and key are normed before they are rotated.
    """

    rope: RopeParameters
    parallel_residual: bool
    qkv_bias: bool
    has_qk_norm: bool


def read_stablelm(hf: HfConfig) -> StableLmConfig:
    """Return a StableLmForCausalLM configuration; see ModelFamily."""
    hidden_size = hf.integer("hidden_size", 2560)
    num_heads = hf.integer("num_attention_heads", 32)
    max_positions = hf.integer("max_position_embeddings", 4096)
    rope = RopeParameters.read(hf, max_positions, default_partial_factor=DEFAULT_ROTARY_FACTOR)
    return StableLmConfig(
        vocab_size=hf.integer("vocab_size", 50304),
        max_position_embeddings=max_positions,
        max_context=rope.max_context,
        hidden_size=hidden_size,
        intermediate_size=hf.integer("intermediate_size", 6912),
        num_layers=hf.integer("num_hidden_layers", 32),
        num_heads=num_heads,
        num_kv_heads=hf.integer("num_key_value_heads", 32),
        head_dim=hidden_size // num_heads,
        norm_eps=hf.number("layer_norm_eps", 1e-5),
        activation=hf.text("hidden_act", "silu"),
        tie_word_embeddings=hf.flag("tie_word_embeddings", False),
        rope=rope,
        parallel_residual=hf.flag("use_parallel_residual", False),
        qkv_bias=hf.flag("use_qkv_bias", False),
        has_qk_norm=hf.flag("qk_layernorm", False),
    )


def norms_of_other_ranks(hf: HfConfig) -> tuple[str, ...]:
    """Return what names the norms of heads, of which each rank reads those of its own."""
    return (r"\.[qk]_layernorm\.norms\.\d+\.weight$",) if hf.flag("qk_layernorm", False) else ()


def build_stablelm(
    config: StableLmConfig, weights: Weights, parallel: ParallelGroup, max_model_len: int
) -> DecoderStack:
    """Return the model with its weights loaded; see ModelFamily."""
    body = weights.scope_if_present("model", "embed_tokens.weight")
    rotary_dim = config.rope.rotary_dim(config.head_dim)
    rotary = RotaryEmbedding(config.rope, rotary_dim, max_model_len, weights.device)
    return DecoderStack(
        config,
        parallel,
        weights,
        body,
        partial(_layer, config, rotary),
        LayerNorm(body, "norm", config.hidden_size, config.norm_eps),
        embedding="embed_tokens",
        layers="layers",
    )


def _layer(
    config: StableLmConfig,
    rotary: RotaryEmbedding,
    weights: Weights,
    heads: HeadShare,
    layer_index: int,
) -> DecoderLayer:
    size, eps = config.hidden_size, config.norm_eps
    attn = weights.scope("self_attn")

    def head_norm(name: str, own: range) -> HeadsLayerNorm:
        norms = attn.scope(name).scope("norms")
        each = [norms.load(f"{head}.weight", (heads.head_dim,)) for head in own]
        return HeadsLayerNorm(torch.stack(each), eps)

    qk_norms: tuple[HeadsLayerNorm, HeadsLayerNorm] | None = None
    if config.has_qk_norm:
        qk_norms = head_norm("q_layernorm", heads.heads), head_norm("k_layernorm", heads.kv_heads)
    attention = SelfAttention(
        QKVParallelLinear(attn, size, heads, ("q_proj", "k_proj", "v_proj"), bias=config.qkv_bias),
        PagedAttention(layer_index, heads.head_dim**-0.5),
        RowParallelLinear(attn, "o_proj", size, size, heads.parallel, bias=False),
        rotary=rotary,
        qk_norms=qk_norms,
    )
    mlp = GatedMLP(
        weights.scope("mlp"),
        size,
        config.intermediate_size,
        heads.parallel,
        activation=config.activation,
    )
    norm = LayerNorm(weights, "input_layernorm", size, eps)
    if config.parallel_residual:
        return ParallelLayer(norm, attention, None, mlp)
    return SequentialLayer(
        norm, attention, LayerNorm(weights, "post_attention_layernorm", size, eps), mlp
    )
