"""StarCoder2: layer norms and biases around rotary attention, maybe in a window; plain MLP."""

from dataclasses import dataclass
from functools import partial

from worker_svc.layers.attention import PagedAttention
from worker_svc.layers.decoder_stack import DecoderConfig, DecoderStack
from worker_svc.layers.linear import HeadShare, QKVParallelLinear, RowParallelLinear
from worker_svc.layers.norm import LayerNorm
from worker_svc.layers.plain_mlp import PlainMLP
from worker_svc.layers.residual import DecoderLayer, SequentialLayer
from worker_svc.layers.rope_scaling import RopeParameters
from worker_svc.layers.rotary import RotaryEmbedding
from worker_svc.layers.self_attention import SelfAttention
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Starcoder2Config(DecoderConfig):
    """Sizes and switches of a StarCoder2.

    Attributes:
        rope: of the rotary embedding.
        sliding_window: tokens that a token sees; None sees all.
        has_bias: whether linear layers have one.
    """

    rope: RopeParameters
    sliding_window: int | None
    has_bias: bool


def read_starcoder2(hf: HfConfig) -> Starcoder2Config:
    """Return a Starcoder2ForCausalLM configuration; see ModelFamily."""
    hidden_size = hf.integer("hidden_size", 3072)
    num_heads = hf.integer("num_attention_heads", 24)
    max_positions = hf.integer("max_position_embeddings", 4096)
    rope = RopeParameters.read(hf, max_positions)
    return Starcoder2Config(
        vocab_size=hf.integer("vocab_size", 49152),
        max_position_embeddings=max_positions,
        max_context=rope.max_context,
        hidden_size=hidden_size,
        intermediate_size=hf.integer("intermediate_size", 12288),
        num_layers=hf.integer("num_hidden_layers", 30),
        num_heads=num_heads,
        num_kv_heads=hf.integer("num_key_value_heads", 2),
        head_dim=hf.integer("head_dim", max(hidden_size // num_heads, 1)),
        norm_eps=hf.number("norm_epsilon", 1e-5),
        activation=hf.text("hidden_act", "gelu_pytorch_tanh"),
        tie_word_embeddings=hf.flag("tie_word_embeddings", True),
        rope=rope,
        sliding_window=hf.integer("sliding_window") if "sliding_window" in hf else None,
        has_bias=hf.flag("use_bias", True),
    )


def build_starcoder2(
    config: Starcoder2Config, weights: Weights, parallel: ParallelGroup, max_model_len: int
) -> DecoderStack:
    """Return the model with its weights loaded; see ModelFamily."""
    body = weights.scope_if_present("model", "embed_tokens.weight")
    rotary = RotaryEmbedding(config.rope, config.head_dim, max_model_len, weights.device)
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
    config: Starcoder2Config,
    rotary: RotaryEmbedding,
    weights: Weights,
    heads: HeadShare,
    layer_index: int,
) -> DecoderLayer:
    size, bias = config.hidden_size, config.has_bias
    attn = weights.scope("self_attn")
    width = heads.total_heads * heads.head_dim
    attention = SelfAttention(
        QKVParallelLinear(attn, size, heads, ("q_proj", "k_proj", "v_proj"), bias=bias),
        PagedAttention(layer_index, heads.head_dim**-0.5, config.sliding_window),
        RowParallelLinear(attn, "o_proj", width, size, heads.parallel, bias=bias),
        rotary=rotary,
    )
    mlp = PlainMLP(weights.scope("mlp"), ("c_fc", "c_proj"), config, heads.parallel, bias=bias)
    return SequentialLayer(
        LayerNorm(weights, "input_layernorm", size, config.norm_eps),
        attention,
        LayerNorm(weights, "post_attention_layernorm", size, config.norm_eps),
        mlp,
    )
