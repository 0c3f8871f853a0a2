"""MPT: ALiBi with configurable slopes, no biases, queries, keys and values maybe clipped."""

from dataclasses import dataclass
from functools import partial

import torch

from worker_svc.layers.alibi import DEFAULT_BIAS_MAX, alibi_slopes
from worker_svc.layers.attention import PagedAttention
from worker_svc.layers.decoder_stack import DecoderConfig, DecoderStack
from worker_svc.layers.linear import HeadShare, QKVParallelLinear, RowParallelLinear
from worker_svc.layers.norm import LayerNorm
from worker_svc.layers.plain_mlp import PlainMLP
from worker_svc.layers.residual import DecoderLayer, SequentialLayer
from worker_svc.layers.self_attention import SelfAttention
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup

EXPANSION_RATIO = 4
NORM_TYPES = ("layernorm", "low_precision_layernorm")


@dataclass(frozen=True, slots=True, kw_only=True)
class MptConfig(DecoderConfig):
    """Sizes and switches of an MPT.

    Attributes:
        attention_scale: factor of the dot products.
        alibi_bias_max: exponent of the last head's slope.
        qkv_clip: query, key and value are clamped to its negative and itself; None leaves them.
    """

    attention_scale: float
    alibi_bias_max: float
    qkv_clip: float | None


def read_mpt(hf: HfConfig) -> MptConfig:
    """Return an MptForCausalLM configuration; see ModelFamily."""
    attn = hf.section("attn_config")
    _refuse_other_shapes(hf, attn)
    hidden_size = hf.integer(hf.spelling("d_model", "hidden_size"), 2048)
    num_heads = hf.integer(hf.spelling("n_heads", "num_attention_heads"), 16)
    max_positions = hf.integer("max_seq_len", 2048)
    # Zero switches it off.
    clip = attn.number("clip_qkv", 0.0)
    return MptConfig(
        vocab_size=hf.integer("vocab_size", 50368),
        # ALiBi sets no limit; this is the length that the model was trained on.
        max_position_embeddings=max_positions,
        max_context=max_positions,
        hidden_size=hidden_size,
        intermediate_size=EXPANSION_RATIO * hidden_size,
        num_layers=hf.integer(hf.spelling("n_layers", "num_hidden_layers"), 24),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        norm_eps=hf.number("layer_norm_epsilon", 1e-5),
        activation="gelu",
        tie_word_embeddings=hf.flag("tie_word_embeddings", True),
        attention_scale=attn.number("softmax_scale", (hidden_size / num_heads) ** -0.5),
        # transformers uses 8 whatever the file says; the models were trained with this number.
        alibi_bias_max=attn.number("alibi_bias_max", DEFAULT_BIAS_MAX),
        qkv_clip=clip or None,
    )


def _refuse_other_shapes(hf: HfConfig, attn: HfConfig) -> None:
    """Refuse what MPT's own code offers and transformers' does not.

    Raises:
        ModelLoadError: a key asks for it.
    """
    for section, key, served in (
        (attn, "alibi", True),
        (attn, "prefix_lm", False),
        (attn, "qk_ln", False),
        (hf, "no_bias", True),
    ):
        if section.flag(key, served) != served:
            raise section.error(key, f"must be {served}, got {not served}".lower())
    attn_type = attn.text("attn_type", "multihead_attention")
    if attn_type != "multihead_attention":
        raise attn.error("attn_type", f"must be 'multihead_attention', got {attn_type!r}")
    if "logit_scale" in hf:
        raise hf.error("logit_scale", "must be absent or null")
    norm_type = hf.text("norm_type", "low_precision_layernorm")
    if norm_type not in NORM_TYPES:
        raise hf.error("norm_type", f"must be {' or '.join(NORM_TYPES)}, got {norm_type!r}")
    ratio = hf.number("expansion_ratio", EXPANSION_RATIO)
    if ratio != EXPANSION_RATIO:
        raise hf.error("expansion_ratio", f"must be {EXPANSION_RATIO}, got {ratio:g}")


class ClippedQKV(QKVParallelLinear):
    """Projections to heads, clamped to [-clip, clip].

    Args:
        weights: scope of the layer.
        hidden_size: of the input.
        heads: which heads.
        clip: None leaves the projections as they are.
    """

    def __init__(
        self, weights: Weights, hidden_size: int, heads: HeadShare, clip: float | None
    ) -> None:
        super().__init__(weights, hidden_size, heads, ("Wqkv",), bias=False)
        self._clip = clip

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [tokens, this rank's query, key and value features]."""
        projected = super().__call__(x)
        return projected if self._clip is None else projected.clamp_(-self._clip, self._clip)


def build_mpt(
    config: MptConfig, weights: Weights, parallel: ParallelGroup, max_model_len: int
) -> DecoderStack:
    """Return the model with its weights loaded; see ModelFamily."""
    body = weights.scope_if_present("transformer", "wte.weight")
    return DecoderStack(
        config,
        parallel,
        weights,
        body,
        partial(_layer, config),
        LayerNorm(body, "norm_f", config.hidden_size, config.norm_eps, bias=False),
        embedding="wte",
        layers="blocks",
    )


def _layer(config: MptConfig, weights: Weights, heads: HeadShare, layer_index: int) -> DecoderLayer:
    size = config.hidden_size
    attn = weights.scope("attn")
    attention = SelfAttention(
        ClippedQKV(attn, size, heads, config.qkv_clip),
        PagedAttention(
            layer_index,
            config.attention_scale,
            alibi_slopes=alibi_slopes(heads, config.alibi_bias_max).to(weights.device),
        ),
        RowParallelLinear(attn, "out_proj", size, size, heads.parallel, bias=False),
    )
    mlp = PlainMLP(
        weights.scope("ffn"), ("up_proj", "down_proj"), config, heads.parallel, bias=False
    )
    return SequentialLayer(
        LayerNorm(weights, "norm_1", size, config.norm_eps, bias=False),
        attention,
        LayerNorm(weights, "norm_2", size, config.norm_eps, bias=False),
        mlp,
    )
