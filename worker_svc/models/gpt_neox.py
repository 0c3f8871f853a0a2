"""GPT-NeoX (Pythia, Dolly): layer norms, rotary over part of each head, parallel residual."""

from dataclasses import dataclass
from functools import partial

from worker_svc.layers.attention import PagedAttention
from worker_svc.layers.decoder_stack import DecoderConfig, DecoderStack
from worker_svc.layers.linear import HeadShare, QKVParallelLinear, RowParallelLinear
from worker_svc.layers.norm import LayerNorm
from worker_svc.layers.plain_mlp import PlainMLP
from worker_svc.layers.residual import DecoderLayer, ParallelLayer, SequentialLayer
from worker_svc.layers.rope_scaling import DEFAULT_THETA, RopeParameters
from worker_svc.layers.rotary import RotaryEmbedding
from worker_svc.layers.self_attention import SelfAttention
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup

DEFAULT_ROTARY_FACTOR = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTNeoXConfig(DecoderConfig):
    """Sizes and switches of a GPT-NeoX.

    Attributes:
        rope: of the rotary embedding.
        parallel_residual: whether the MLP reads the stream before attention has added to it.
        attention_bias: whether attention's layers have a bias; the MLP's always do.
    """

    rope: RopeParameters
    parallel_residual: bool
    attention_bias: bool


def read_gpt_neox(hf: HfConfig) -> GPTNeoXConfig:
    """Return a GPTNeoXForCausalLM configuration; see ModelFamily."""
    hidden_size = hf.integer("hidden_size", 6144)
    num_heads = hf.integer("num_attention_heads", 64)
    max_positions = hf.integer("max_position_embeddings", 2048)
    rope = RopeParameters.read(
        hf,
        max_positions,
        default_theta=hf.number("rotary_emb_base", DEFAULT_THETA),
        default_partial_factor=hf.number("rotary_pct", DEFAULT_ROTARY_FACTOR),
    )
    return GPTNeoXConfig(
        vocab_size=hf.integer("vocab_size", 50432),
        max_position_embeddings=max_positions,
        max_context=rope.max_context,
        hidden_size=hidden_size,
        intermediate_size=hf.integer("intermediate_size", 24576),
        num_layers=hf.integer("num_hidden_layers", 44),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        norm_eps=hf.number("layer_norm_eps", 1e-5),
        activation=hf.text("hidden_act", "gelu"),
        tie_word_embeddings=hf.flag("tie_word_embeddings", False),
        rope=rope,
        parallel_residual=hf.flag("use_parallel_residual", True),
        attention_bias=hf.flag("attention_bias", True),
    )


def build_gpt_neox(
    config: GPTNeoXConfig, weights: Weights, parallel: ParallelGroup, max_model_len: int
) -> DecoderStack:
    """Return the model with its weights loaded; see ModelFamily."""
    body = weights.scope_if_present("gpt_neox", "embed_in.weight")
    rotary_dim = config.rope.rotary_dim(config.head_dim)
    rotary = RotaryEmbedding(config.rope, rotary_dim, max_model_len, weights.device)
    # The head's name before transformers 5, which all published checkpoints have.
    head_name = "embed_out" if weights.has("embed_out.weight") else "lm_head"
    return DecoderStack(
        config,
        parallel,
        weights,
        body,
        partial(_layer, config, rotary),
        LayerNorm(body, "final_layer_norm", config.hidden_size, config.norm_eps),
        embedding="embed_in",
        layers="layers",
        head=head_name,
    )


def _layer(
    config: GPTNeoXConfig,
    rotary: RotaryEmbedding,
    weights: Weights,
    heads: HeadShare,
    layer_index: int,
) -> DecoderLayer:
    size, bias = config.hidden_size, config.attention_bias
    attn = weights.scope("attention")
    attention = SelfAttention(
        QKVParallelLinear(attn, size, heads, ("query_key_value",), bias=bias, grouped=True),
        PagedAttention(layer_index, heads.head_dim**-0.5),
        RowParallelLinear(attn, "dense", size, size, heads.parallel, bias=bias),
        rotary=rotary,
    )
    mlp = PlainMLP(
        weights.scope("mlp"), ("dense_h_to_4h", "dense_4h_to_h"), config, heads.parallel, bias=True
    )
    layer = ParallelLayer if config.parallel_residual else SequentialLayer
    return layer(
        LayerNorm(weights, "input_layernorm", size, config.norm_eps),
        attention,
        LayerNorm(weights, "post_attention_layernorm", size, config.norm_eps),
        mlp,
    )
