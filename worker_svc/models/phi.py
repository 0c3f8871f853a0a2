"""Phi (1, 1.5, 2): one norm for attention and MLP alike, partial rotary, biases everywhere."""

from dataclasses import dataclass
from functools import partial

from worker_svc.layers.attention import PagedAttention
from worker_svc.layers.decoder_stack import DecoderConfig, DecoderStack
from worker_svc.layers.linear import HeadShare, QKVParallelLinear, RowParallelLinear
from worker_svc.layers.norm import LayerNorm
from worker_svc.layers.plain_mlp import PlainMLP
from worker_svc.layers.residual import DecoderLayer, ParallelLayer
from worker_svc.layers.rope_scaling import RopeParameters
from worker_svc.layers.rotary import RotaryEmbedding
from worker_svc.layers.self_attention import SelfAttention
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup

DEFAULT_ROTARY_FACTOR = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PhiConfig(DecoderConfig):
    """Sizes and switches of a Phi.

    Attributes:
        rope: of the rotary embedding.
        has_qk_norm: whether each head's query and key are normed before they are rotated.
    """

    rope: RopeParameters
    has_qk_norm: bool


def read_phi(hf: HfConfig) -> PhiConfig:
    """Return a PhiForCausalLM configuration; see ModelFamily."""
    hidden_size = hf.integer("hidden_size", 2048)
    num_heads = hf.integer("num_attention_heads", 32)
    max_positions = hf.integer("max_position_embeddings", 2048)
    rope = RopeParameters.read(hf, max_positions, default_partial_factor=DEFAULT_ROTARY_FACTOR)
    return PhiConfig(
        vocab_size=hf.integer("vocab_size", 51200),
        max_position_embeddings=max_positions,
        max_context=rope.max_context,
        hidden_size=hidden_size,
        intermediate_size=hf.integer("intermediate_size", 8192),
        num_layers=hf.integer("num_hidden_layers", 24),
        num_heads=num_heads,
        num_kv_heads=hf.integer("num_key_value_heads", num_heads),
        head_dim=hf.integer("head_dim", max(hidden_size // num_heads, 1)),
        norm_eps=hf.number("layer_norm_eps", 1e-5),
        activation=hf.text("hidden_act", "gelu_new"),
        tie_word_embeddings=hf.flag("tie_word_embeddings", False),
        rope=rope,
        has_qk_norm=hf.flag("qk_layernorm", False),
    )


def build_phi(
    config: PhiConfig, weights: Weights, parallel: ParallelGroup, max_model_len: int
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
        LayerNorm(body, "final_layernorm", config.hidden_size, config.norm_eps),
        embedding="embed_tokens",
        layers="layers",
        head_bias=True,
    )


def _layer(
    config: PhiConfig,
    rotary: RotaryEmbedding,
    weights: Weights,
    heads: HeadShare,
    layer_index: int,
) -> DecoderLayer:
    size, eps = config.hidden_size, config.norm_eps
    attn = weights.scope("self_attn")
    qk_norms: tuple[LayerNorm, LayerNorm] | None = None
    if config.has_qk_norm:
        qk_norms = (
            LayerNorm(attn, "q_layernorm", heads.head_dim, eps),
            LayerNorm(attn, "k_layernorm", heads.head_dim, eps),
        )
    attention = SelfAttention(
        QKVParallelLinear(attn, size, heads, ("q_proj", "k_proj", "v_proj"), bias=True),
        PagedAttention(layer_index, heads.head_dim**-0.5),
        RowParallelLinear(
            attn, "dense", heads.total_heads * heads.head_dim, size, heads.parallel, bias=True
        ),
        rotary=rotary,
        qk_norms=qk_norms,
    )
    mlp = PlainMLP(weights.scope("mlp"), ("fc1", "fc2"), config, heads.parallel, bias=True)
    return ParallelLayer(LayerNorm(weights, "input_layernorm", size, eps), attention, None, mlp)
