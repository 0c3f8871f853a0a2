"""GPT-J: one norm for attention and MLP alike, neighbouring features rotated, biased head."""

from dataclasses import dataclass
from functools import partial

from worker_svc.layers.attention import PagedAttention
from worker_svc.layers.decoder_stack import DecoderConfig, DecoderStack
from worker_svc.layers.linear import HeadShare, QKVParallelLinear, RowParallelLinear
from worker_svc.layers.norm import LayerNorm
from worker_svc.layers.plain_mlp import PlainMLP
from worker_svc.layers.residual import DecoderLayer, ParallelLayer
from worker_svc.layers.rope_scaling import DEFAULT_THETA, RopeParameters
from worker_svc.layers.rotary import RotaryEmbedding
from worker_svc.layers.self_attention import SelfAttention
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTJConfig(DecoderConfig):
    """Sizes and switches of a GPT-J.

    Attributes:
        rope: of the rotary embedding.
        rotary_dim: features of a head that are rotated, the first ones.
    """

    rope: RopeParameters
    rotary_dim: int


def read_gptj(hf: HfConfig) -> GPTJConfig:
    """Return a GPTJForCausalLM configuration; see ModelFamily."""
    hidden_size = hf.integer(hf.spelling("n_embd", "hidden_size"), 4096)
    num_heads = hf.integer(hf.spelling("n_head", "num_attention_heads"), 16)
    max_positions = hf.integer(hf.spelling("n_positions", "max_position_embeddings"), 2048)
    head_dim = hidden_size // num_heads
    rotary_dim = hf.integer("rotary_dim", 64)
    if rotary_dim % 2 != 0 or rotary_dim > head_dim:
        raise hf.error("rotary_dim", f"must be even and at most {head_dim}, got {rotary_dim}")
    return GPTJConfig(
        vocab_size=hf.integer("vocab_size", 50400),
        max_position_embeddings=max_positions,
        max_context=max_positions,
        hidden_size=hidden_size,
        intermediate_size=hf.integer("n_inner", 4 * hidden_size),
        num_layers=hf.integer(hf.spelling("n_layer", "num_hidden_layers"), 28),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        norm_eps=hf.number("layer_norm_epsilon", 1e-5),
        activation=hf.text("activation_function", "gelu_new"),
        tie_word_embeddings=hf.flag("tie_word_embeddings", False),
        # Its configuration has no keys for wavelengths.
        rope=RopeParameters("default", DEFAULT_THETA, max_positions, max_positions, hf),
        rotary_dim=rotary_dim,
    )


def build_gptj(
    config: GPTJConfig, weights: Weights, parallel: ParallelGroup, max_model_len: int
) -> DecoderStack:
    """Return the model with its weights loaded; see ModelFamily."""
    body = weights.scope_if_present("transformer", "wte.weight")
    rotary = RotaryEmbedding(
        config.rope, config.rotary_dim, max_model_len, weights.device, is_neox=False
    )
    return DecoderStack(
        config,
        parallel,
        weights,
        body,
        partial(_layer, config, rotary),
        LayerNorm(body, "ln_f", config.hidden_size, config.norm_eps),
        embedding="wte",
        layers="h",
        head_bias=True,
    )


def _layer(
    config: GPTJConfig,
    rotary: RotaryEmbedding,
    weights: Weights,
    heads: HeadShare,
    layer_index: int,
) -> DecoderLayer:
    size = config.hidden_size
    attn = weights.scope("attn")
    attention = SelfAttention(
        QKVParallelLinear(attn, size, heads, ("q_proj", "k_proj", "v_proj"), bias=False),
        PagedAttention(layer_index, heads.head_dim**-0.5),
        RowParallelLinear(attn, "out_proj", size, size, heads.parallel, bias=False),
        rotary=rotary,
    )
    mlp = PlainMLP(weights.scope("mlp"), ("fc_in", "fc_out"), config, heads.parallel, bias=True)
    return ParallelLayer(LayerNorm(weights, "ln_1", size, config.norm_eps), attention, None, mlp)
