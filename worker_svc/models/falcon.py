"""Falcon in its three shapes: ALiBi (RW), one key/value head (7B), groups of heads (40B on)."""

from dataclasses import dataclass
from functools import partial

from worker_svc.layers.alibi import alibi_slopes
from worker_svc.layers.attention import PagedAttention
from worker_svc.layers.decoder_stack import DecoderConfig, DecoderStack
from worker_svc.layers.linear import HeadShare, QKVParallelLinear, RowParallelLinear
from worker_svc.layers.norm import LayerNorm
from worker_svc.layers.plain_mlp import PlainMLP
from worker_svc.layers.residual import DecoderLayer, ParallelLayer, SequentialLayer
from worker_svc.layers.rope_scaling import RopeParameters
from worker_svc.layers.rotary import RotaryEmbedding
from worker_svc.layers.self_attention import SelfAttention
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class FalconConfig(DecoderConfig):
    """Sizes and switches of a Falcon.

    Attributes:
        rope: of the rotary embedding; None with ALiBi.
        parallel_residual: whether the MLP reads the stream before attention has added to it.
        has_mlp_norm: whether the MLP has a norm of its own.
        has_bias: whether linear layers have one.
    """

    rope: RopeParameters | None
    parallel_residual: bool
    has_mlp_norm: bool
    has_bias: bool


def read_falcon(hf: HfConfig) -> FalconConfig:
    """Return a FalconForCausalLM configuration; see ModelFamily."""
    hidden_size = hf.integer(hf.spelling("n_embed", "hidden_size"), 4544)
    num_heads = hf.integer("num_attention_heads", 71)
    max_positions = hf.integer("max_position_embeddings", 2048)
    rope = None if hf.flag("alibi", False) else RopeParameters.read(hf, max_positions)
    parallel_residual = hf.flag("parallel_attn", True)
    return FalconConfig(
        vocab_size=hf.integer("vocab_size", 65024),
        max_position_embeddings=max_positions,
        max_context=max_positions if rope is None else rope.max_context,
        hidden_size=hidden_size,
        intermediate_size=hf.integer("ffn_hidden_size", 4 * hidden_size),
        num_layers=hf.integer("num_hidden_layers", 32),
        num_heads=num_heads,
        num_kv_heads=_read_num_kv_heads(hf, num_heads),
        head_dim=hidden_size // num_heads,
        norm_eps=hf.number("layer_norm_epsilon", 1e-5),
        activation=hf.text("activation", "gelu"),
        tie_word_embeddings=hf.flag("tie_word_embeddings", True),
        rope=rope,
        parallel_residual=parallel_residual,
        has_mlp_norm=not parallel_residual or _read_num_parallel_norms(hf) == 2,
        has_bias=hf.flag("bias", False),
    )


def _read_num_kv_heads(hf: HfConfig, num_heads: int) -> int:
    num_kv_heads = hf.integer("num_kv_heads", num_heads)
    if hf.flag("new_decoder_architecture", False):
        if not hf.flag("parallel_attn", True):
            raise hf.error("parallel_attn", "must be true with new_decoder_architecture, got false")
        return num_kv_heads
    # Configurations of this shape may have any number here; checkpoints have one of these two.
    return 1 if hf.flag("multi_query", True) else num_heads


def _read_num_parallel_norms(hf: HfConfig) -> int:
    """Return the number of norms before attention and MLP where both read the same stream."""
    has_groups = hf.flag("new_decoder_architecture", False)
    num_norms = hf.integer("num_ln_in_parallel_attn", 2 if has_groups else 1)
    if num_norms > (2 if has_groups else 1):
        allowed = "1 or 2" if has_groups else "1 without new_decoder_architecture"
        raise hf.error("num_ln_in_parallel_attn", f"must be {allowed}, got {num_norms}")
    return num_norms


def build_falcon(
    config: FalconConfig, weights: Weights, parallel: ParallelGroup, max_model_len: int
) -> DecoderStack:
    """Return the model with its weights loaded; see ModelFamily."""
    body = weights.scope_if_present("transformer", "word_embeddings.weight")
    rotary: RotaryEmbedding | None = None
    if config.rope is not None:
        rotary = RotaryEmbedding(config.rope, config.head_dim, max_model_len, weights.device)
    return DecoderStack(
        config,
        parallel,
        weights,
        body,
        partial(_layer, config, rotary),
        LayerNorm(body, "ln_f", config.hidden_size, config.norm_eps),
        embedding="word_embeddings",
        layers="h",
    )


def _layer(
    config: FalconConfig,
    rotary: RotaryEmbedding | None,
    weights: Weights,
    heads: HeadShare,
    layer_index: int,
) -> DecoderLayer:
    size, bias = config.hidden_size, config.has_bias
    attn = weights.scope("self_attention")
    scale = heads.head_dim**-0.5
    # Falcon scales dot product and bias together.
    slopes = alibi_slopes(heads).to(weights.device) * scale if rotary is None else None
    attention = SelfAttention(
        QKVParallelLinear(attn, size, heads, ("query_key_value",), bias=bias, grouped=True),
        PagedAttention(layer_index, scale, alibi_slopes=slopes),
        RowParallelLinear(attn, "dense", size, size, heads.parallel, bias=bias),
        rotary=rotary,
    )
    mlp = PlainMLP(
        weights.scope("mlp"), ("dense_h_to_4h", "dense_4h_to_h"), config, heads.parallel, bias=bias
    )

    def norm(name: str) -> LayerNorm:
        return LayerNorm(weights, name, size, config.norm_eps)

    if not config.parallel_residual:
        return SequentialLayer(
            norm("input_layernorm"), attention, norm("post_attention_layernorm"), mlp
        )
    if config.has_mlp_norm:
        return ParallelLayer(norm("ln_attn"), attention, norm("ln_mlp"), mlp)
    return ParallelLayer(norm("input_layernorm"), attention, None, mlp)
