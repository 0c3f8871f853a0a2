"""BLOOM: ALiBi, normed embeddings, biases everywhere, tied head."""

from dataclasses import dataclass
from functools import partial

import torch

from worker_svc.layers.alibi import alibi_slopes
from worker_svc.layers.attention import AttentionMetadata, PagedAttention
from worker_svc.layers.decoder_stack import DecoderConfig, DecoderStack
from worker_svc.layers.linear import HeadShare, QKVParallelLinear, RowParallelLinear
from worker_svc.layers.norm import LayerNorm
from worker_svc.layers.plain_mlp import PlainMLP
from worker_svc.layers.residual import DecoderLayer, ResidualStream, SequentialLayer
from worker_svc.layers.self_attention import SelfAttention
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup

DEFAULT_POSITIONS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class BloomConfig(DecoderConfig):
    """Sizes and switches of a BLOOM.

    Attributes:
        residual_after_norm: whether attention and MLP add to the normed stream they read.
    """

    residual_after_norm: bool


def read_bloom(hf: HfConfig) -> BloomConfig:
    """Return a BloomForCausalLM configuration; see ModelFamily."""
    if hf.flag("slow_but_exact", False) and hf.integer("pretraining_tp", 1) > 1:
        raise hf.error("slow_but_exact", "must be false with pretraining_tp above 1, got true")
    hidden_size = hf.integer(hf.spelling("n_embed", "hidden_size"), 64)
    num_heads = hf.integer(hf.spelling("num_attention_heads", "n_head"), 8)
    # ALiBi sets no limit; this is the length that the model was trained on.
    max_positions = hf.integer("seq_length", DEFAULT_POSITIONS)
    return BloomConfig(
        vocab_size=hf.integer("vocab_size", 250880),
        max_position_embeddings=max_positions,
        max_context=max_positions,
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_layers=hf.integer(hf.spelling("num_hidden_layers", "n_layer"), 2),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        norm_eps=hf.number("layer_norm_epsilon", 1e-5),
        activation="gelu_new",
        tie_word_embeddings=hf.flag("tie_word_embeddings", True),
        residual_after_norm=hf.flag("apply_residual_connection_post_layernorm", False),
    )


@dataclass(frozen=True, slots=True)
class NormedResidualLayer:
    """norm(x) + attention(norm(x)), then the same with the MLP: the stream itself is normed."""

    attention_norm: LayerNorm
    attention: SelfAttention
    mlp_norm: LayerNorm
    mlp: PlainMLP

    def __call__(
        self, stream: ResidualStream, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        """See DecoderLayer."""
        normed = stream.normalize(self.attention_norm)
        stream.add(self.attention(normed, positions, metadata))
        stream.add(self.mlp(stream.normalize(self.mlp_norm)))


def build_bloom(
    config: BloomConfig, weights: Weights, parallel: ParallelGroup, max_model_len: int
) -> DecoderStack:
    """Return the model with its weights loaded; see ModelFamily."""
    size, eps = config.hidden_size, config.norm_eps
    body = weights.scope_if_present("transformer", "word_embeddings.weight")
    return DecoderStack(
        config,
        parallel,
        weights,
        body,
        partial(_layer, config),
        LayerNorm(body, "ln_f", size, eps),
        embedding="word_embeddings",
        layers="h",
        project_in=LayerNorm(body, "word_embeddings_layernorm", size, eps),
    )


def _layer(
    config: BloomConfig, weights: Weights, heads: HeadShare, layer_index: int
) -> DecoderLayer:
    size = config.hidden_size
    attn = weights.scope("self_attention")
    attention = SelfAttention(
        QKVParallelLinear(attn, size, heads, ("query_key_value",), bias=True, grouped=True),
        PagedAttention(
            layer_index, heads.head_dim**-0.5, alibi_slopes=alibi_slopes(heads).to(weights.device)
        ),
        RowParallelLinear(attn, "dense", size, size, heads.parallel, bias=True),
    )
    mlp = PlainMLP(
        weights.scope("mlp"), ("dense_h_to_4h", "dense_4h_to_h"), config, heads.parallel, bias=True
    )
    layer = NormedResidualLayer if config.residual_after_norm else SequentialLayer
    return layer(
        LayerNorm(weights, "input_layernorm", size, config.norm_eps),
        attention,
        LayerNorm(weights, "post_attention_layernorm", size, config.norm_eps),
        mlp,
    )
