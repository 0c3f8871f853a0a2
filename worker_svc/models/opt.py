"""OPT: learned positions with an offset, norms before or after, maybe narrow embeddings."""

from dataclasses import dataclass
from functools import partial

from worker_svc.layers.attention import PagedAttention
from worker_svc.layers.chain import TensorFunction
from worker_svc.layers.decoder_stack import DecoderConfig, DecoderStack
from worker_svc.layers.embedding import PositionEmbedding
from worker_svc.layers.linear import (
    HeadShare,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from worker_svc.layers.norm import LayerNorm
from worker_svc.layers.plain_mlp import PlainMLP
from worker_svc.layers.residual import DecoderLayer, PostNormLayer, SequentialLayer
from worker_svc.layers.self_attention import SelfAttention
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup

POSITION_OFFSET = 2
LAYER_NORM_EPS = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class OPTConfig(DecoderConfig):
    """Sizes and switches of an OPT.

    Attributes:
        embedding_size: features of a token embedding; other than hidden_size in OPT-350m.
        norm_first: whether norms stand before attention and MLP; after them in OPT-350m.
        has_final_norm: whether a norm follows the last layer.
        has_bias: whether linear layers have one.
        affine_norms: whether norms have weights.
    """

    embedding_size: int
    norm_first: bool
    has_final_norm: bool
    has_bias: bool
    affine_norms: bool


def read_opt(hf: HfConfig) -> OPTConfig:
    """Return an OPTForCausalLM configuration; see ModelFamily."""
    hidden_size = hf.integer("hidden_size", 768)
    num_heads = hf.integer("num_attention_heads", 12)
    max_positions = hf.integer("max_position_embeddings", 2048)
    norm_first = hf.flag("do_layer_norm_before", True)
    return OPTConfig(
        vocab_size=hf.integer("vocab_size", 50272),
        max_position_embeddings=max_positions,
        # Positions are learned: there are no others.
        max_context=max_positions,
        hidden_size=hidden_size,
        intermediate_size=hf.integer("ffn_dim", 3072),
        num_layers=hf.integer("num_hidden_layers", 12),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        norm_eps=LAYER_NORM_EPS,
        activation=hf.text("activation_function", "relu"),
        tie_word_embeddings=hf.flag("tie_word_embeddings", True),
        embedding_size=hf.integer("word_embed_proj_dim", hidden_size),
        norm_first=norm_first,
        has_final_norm=norm_first and not hf.flag("_remove_final_layer_norm", False),
        has_bias=hf.flag("enable_bias", True),
        affine_norms=hf.flag("layer_norm_elementwise_affine", True),
    )


def build_opt(
    config: OPTConfig, weights: Weights, parallel: ParallelGroup, max_model_len: int
) -> DecoderStack:
    """Return the model with its weights loaded; see ModelFamily."""
    size, narrow = config.hidden_size, config.embedding_size
    body = weights.scope_if_present("model", "decoder.embed_tokens.weight").scope("decoder")
    project_in: TensorFunction | None = None
    project_out: TensorFunction | None = None
    if narrow != size:
        project_in = ReplicatedLinear(body, "project_in", narrow, size, bias=False)
        project_out = ReplicatedLinear(body, "project_out", size, narrow, bias=False)
    return DecoderStack(
        config,
        parallel,
        weights,
        body,
        partial(_layer, config),
        _norm(config, body, "final_layer_norm") if config.has_final_norm else None,
        embedding="embed_tokens",
        layers="layers",
        positions=PositionEmbedding(
            body,
            "embed_positions",
            config.max_position_embeddings,
            size,
            max_model_len,
            offset=POSITION_OFFSET,
        ),
        embedding_size=narrow,
        project_in=project_in,
        project_out=project_out,
    )


def _layer(config: OPTConfig, weights: Weights, heads: HeadShare, layer_index: int) -> DecoderLayer:
    size, bias = config.hidden_size, config.has_bias
    attn = weights.scope("self_attn")
    attention = SelfAttention(
        QKVParallelLinear(attn, size, heads, ("q_proj", "k_proj", "v_proj"), bias=bias),
        PagedAttention(layer_index, heads.head_dim**-0.5),
        RowParallelLinear(attn, "out_proj", size, size, heads.parallel, bias=bias),
    )
    mlp = PlainMLP(weights, ("fc1", "fc2"), config, heads.parallel, bias=bias)
    attention_norm = _norm(config, weights, "self_attn_layer_norm")
    mlp_norm = _norm(config, weights, "final_layer_norm")
    if config.norm_first:
        return SequentialLayer(attention_norm, attention, mlp_norm, mlp)
    return PostNormLayer(attention, attention_norm, mlp, mlp_norm)


def _norm(config: OPTConfig, weights: Weights, name: str) -> LayerNorm:
    return LayerNorm(weights, name, config.hidden_size, config.norm_eps, config.affine_norms)
