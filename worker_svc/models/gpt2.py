"""GPT-2: learned positions, layer norms first, weights stored as [in, out], tied head."""

from dataclasses import dataclass
from functools import partial

from worker_svc.layers.attention import PagedAttention
from worker_svc.layers.decoder_stack import DecoderConfig, DecoderStack
from worker_svc.layers.embedding import PositionEmbedding
from worker_svc.layers.linear import HeadShare, QKVParallelLinear, RowParallelLinear
from worker_svc.layers.norm import LayerNorm
from worker_svc.layers.plain_mlp import PlainMLP
from worker_svc.layers.residual import DecoderLayer, SequentialLayer
from worker_svc.layers.self_attention import SelfAttention
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class GPT2Config(DecoderConfig):
    """Sizes and switches of a GPT-2.

    Attributes:
        scales_by_head_dim: whether dot products are divided by sqrt(head_dim).
        scales_by_layer: whether they are divided by the layer's number, from 1, too.
    """

    scales_by_head_dim: bool
    scales_by_layer: bool

    def attention_scale(self, layer_index: int) -> float:
        """Return the factor of the dot products in a layer."""
        scale = self.head_dim**-0.5 if self.scales_by_head_dim else 1.0
        return scale / (layer_index + 1) if self.scales_by_layer else scale


def read_gpt2(hf: HfConfig) -> GPT2Config:
    """Return a GPT2LMHeadModel configuration; see ModelFamily."""
    if hf.flag("add_cross_attention", False):
        raise hf.error("add_cross_attention", "must be false, got true")
    hidden_size = hf.integer("n_embd", 768)
    num_heads = hf.integer("n_head", 12)
    max_positions = hf.integer("n_positions", 1024)
    return GPT2Config(
        vocab_size=hf.integer("vocab_size", 50257),
        max_position_embeddings=max_positions,
        # Positions are learned: there are no others.
        max_context=max_positions,
        hidden_size=hidden_size,
        intermediate_size=hf.integer("n_inner", 4 * hidden_size),
        num_layers=hf.integer("n_layer", 12),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        norm_eps=hf.number("layer_norm_epsilon", 1e-5),
        activation=hf.text("activation_function", "gelu_new"),
        tie_word_embeddings=hf.flag("tie_word_embeddings", True),
        scales_by_head_dim=hf.flag("scale_attn_weights", True),
        scales_by_layer=hf.flag("scale_attn_by_inverse_layer_idx", False),
    )


def build_gpt2(
    config: GPT2Config, weights: Weights, parallel: ParallelGroup, max_model_len: int
) -> DecoderStack:
    """Return the model with its weights loaded; see ModelFamily."""
    size = config.hidden_size
    body = weights.scope_if_present("transformer", "wte.weight")
    return DecoderStack(
        config,
        parallel,
        weights,
        body,
        partial(_layer, config),
        LayerNorm(body, "ln_f", size, config.norm_eps),
        embedding="wte",
        layers="h",
        positions=PositionEmbedding(
            body, "wpe", config.max_position_embeddings, size, max_model_len
        ),
    )


def _layer(
    config: GPT2Config, weights: Weights, heads: HeadShare, layer_index: int
) -> DecoderLayer:
    size = config.hidden_size
    attn = weights.scope("attn")
    attention = SelfAttention(
        QKVParallelLinear(attn, size, heads, ("c_attn",), bias=True, transposed=True),
        PagedAttention(layer_index, config.attention_scale(layer_index)),
        RowParallelLinear(attn, "c_proj", size, size, heads.parallel, bias=True, transposed=True),
    )
    mlp = PlainMLP(
        weights.scope("mlp"), ("c_fc", "c_proj"), config, heads.parallel, bias=True, transposed=True
    )
    return SequentialLayer(
        LayerNorm(weights, "ln_1", size, config.norm_eps),
        attention,
        LayerNorm(weights, "ln_2", size, config.norm_eps),
        mlp,
    )
