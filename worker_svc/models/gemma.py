"""Gemma, Gemma 2 and Gemma 3: scaled embeddings, norms by 1 + weight, capped logits, windows.

From Gemma 2 on, there are norms before and after attention and MLP, and layers that see a window
alternate with layers that see everything.
"""

from dataclasses import dataclass
from functools import partial

import torch

from worker_svc.layers.attention import PagedAttention
from worker_svc.layers.chain import TensorFunction, chain, scaled_by
from worker_svc.layers.decoder_stack import DecoderConfig, DecoderStack
from worker_svc.layers.gated_mlp import GatedMLP
from worker_svc.layers.linear import HeadShare, QKVParallelLinear, RowParallelLinear
from worker_svc.layers.norm import GemmaRMSNorm
from worker_svc.layers.residual import DecoderLayer, SequentialLayer
from worker_svc.layers.rope_scaling import RopeParameters
from worker_svc.layers.rotary import RotaryEmbedding
from worker_svc.layers.self_attention import SelfAttention
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.models.sliding_windows import FULL, SLIDING, read_layer_types
from worker_svc.parallel.group import ParallelGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaConfig(DecoderConfig):
    """Sizes and switches of a Gemma.

    Attributes:
        query_pre_attn_scalar: dot products are divided by its square root.
        attention_soft_cap: of the dot products; None for none.
        final_soft_cap: of the logits; None for none.
        has_post_norms: whether attention and MLP are followed by a norm, too.
        has_qk_norm: whether each head's query and key are normed before they are rotated.
        attention_bias: whether attention's projections have a bias.
        sliding_window: tokens that layers of kind SLIDING see.
        layer_kinds: [num_layers] SLIDING or FULL.
        ropes: of the rotary embedding, by kind of layer.
    """

    query_pre_attn_scalar: float
    attention_soft_cap: float | None
    final_soft_cap: float | None
    has_post_norms: bool
    has_qk_norm: bool
    attention_bias: bool
    sliding_window: int | None
    layer_kinds: tuple[str, ...]
    ropes: dict[str, RopeParameters]


def read_gemma(hf: HfConfig) -> GemmaConfig:
    """Return a GemmaForCausalLM configuration; see ModelFamily."""
    rope = RopeParameters.read(hf, hf.integer("max_position_embeddings", 8192))
    head_dim = hf.integer("head_dim", 256)
    return _config(
        hf,
        ropes={SLIDING: rope, FULL: rope},
        window_every=1,
        # Gemma 1 has the usual scale, and neither windows nor caps.
        query_pre_attn_scalar=float(head_dim),
        is_first=True,
    )


def read_gemma2(hf: HfConfig) -> GemmaConfig:
    """Return a Gemma2ForCausalLM configuration; see ModelFamily."""
    rope = RopeParameters.read(hf, hf.integer("max_position_embeddings", 8192))
    return _config(hf, ropes={SLIDING: rope, FULL: rope}, window_every=2, default_cap=50.0)


def read_gemma3(hf: HfConfig) -> GemmaConfig:
    """Return a Gemma3ForCausalLM configuration; see ModelFamily."""
    max_positions = hf.integer("max_position_embeddings", 131_072)
    both = hf.section("rope_parameters")
    if SLIDING in both or FULL in both:
        ropes = {
            kind: RopeParameters.read(hf, max_positions, section=both.section(kind))
            for kind in (SLIDING, FULL)
        }
    else:
        # Before transformers 5: scaling and rope_theta are those of full attention.
        local = HfConfig({"rope_theta": hf.number("rope_local_base_freq", 10_000.0)}, "rope")
        ropes = {
            SLIDING: RopeParameters.read(hf, max_positions, section=local),
            FULL: RopeParameters.read(hf, max_positions, default_theta=1e6),
        }
    every = hf.integer("sliding_window_pattern", hf.integer("_sliding_window_pattern", 6))
    return _config(hf, ropes=ropes, window_every=every, has_qk_norm=True)


def _config(
    hf: HfConfig,
    *,
    ropes: dict[str, RopeParameters],
    window_every: int,
    query_pre_attn_scalar: float | None = None,
    default_cap: float | None = None,
    has_qk_norm: bool = False,
    is_first: bool = False,
) -> GemmaConfig:
    if hf.flag("use_bidirectional_attention", False):
        raise hf.error("use_bidirectional_attention", "must be false, got true")
    num_layers = hf.integer("num_hidden_layers", 26)
    num_heads = hf.integer("num_attention_heads", 8)
    if query_pre_attn_scalar is None:
        query_pre_attn_scalar = hf.number("query_pre_attn_scalar", 256)
    act = "hidden_act" if is_first and "hidden_activation" not in hf else "hidden_activation"
    return GemmaConfig(
        vocab_size=hf.integer("vocab_size"),
        max_position_embeddings=ropes[FULL].max_position_embeddings,
        max_context=ropes[FULL].max_context,
        hidden_size=hf.integer("hidden_size"),
        intermediate_size=hf.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=hf.integer("num_key_value_heads", num_heads),
        head_dim=hf.integer("head_dim", 256),
        norm_eps=hf.number("rms_norm_eps", 1e-6),
        # The first checkpoints write "gelu" for its approximation.
        activation=_activation(hf.text(act, "gelu_pytorch_tanh")),
        tie_word_embeddings=True,
        query_pre_attn_scalar=query_pre_attn_scalar,
        attention_soft_cap=None if is_first else _cap(hf, "attn_logit_softcapping", default_cap),
        final_soft_cap=(
            None if is_first else _cap(hf, "final_logit_softcapping", default_cap and 30.0)
        ),
        has_post_norms=not is_first,
        has_qk_norm=has_qk_norm,
        attention_bias=hf.flag("attention_bias", False),
        sliding_window=None if is_first else hf.integer("sliding_window", 4096),
        layer_kinds=read_layer_types(hf, num_layers, window_every),
        ropes=ropes,
    )


def _activation(name: str) -> str:
    return "gelu_pytorch_tanh" if name == "gelu" else name


def _cap(hf: HfConfig, key: str, default: float | None) -> float | None:
    if key in hf:
        return hf.number(key)
    # null means no cap.
    return None if key in hf.names() else default


def build_gemma(
    config: GemmaConfig, weights: Weights, parallel: ParallelGroup, max_model_len: int
) -> DecoderStack:
    """Return the model with its weights loaded; see ModelFamily."""
    size = config.hidden_size
    body = weights.scope_if_present("model", "embed_tokens.weight")
    rotaries = {
        kind: RotaryEmbedding(rope, config.head_dim, max_model_len, weights.device)
        for kind, rope in config.ropes.items()
    }
    return DecoderStack(
        config,
        parallel,
        weights,
        body,
        partial(_layer, config, rotaries),
        GemmaRMSNorm(body, "norm", size, config.norm_eps),
        embedding="embed_tokens",
        layers="layers",
        soft_cap=config.final_soft_cap,
        # Rounded to the model's type, as it was in training.
        project_in=scaled_by(torch.tensor(size**0.5, dtype=weights.dtype).item()),
    )


def _layer(
    config: GemmaConfig,
    rotaries: dict[str, RotaryEmbedding],
    weights: Weights,
    heads: HeadShare,
    layer_index: int,
) -> DecoderLayer:
    size, bias = config.hidden_size, config.attention_bias
    attn = weights.scope("self_attn")

    def norm(name: str, scope: Weights = weights, width: int = size) -> GemmaRMSNorm:
        return GemmaRMSNorm(scope, name, width, config.norm_eps)

    qk_norms: tuple[GemmaRMSNorm, GemmaRMSNorm] | None = None
    if config.has_qk_norm:
        qk_norms = norm("q_norm", attn, heads.head_dim), norm("k_norm", attn, heads.head_dim)
    width = heads.total_heads * heads.head_dim
    out: TensorFunction = RowParallelLinear(attn, "o_proj", width, size, heads.parallel, bias=bias)
    mlp: TensorFunction = GatedMLP(
        weights.scope("mlp"),
        size,
        config.intermediate_size,
        heads.parallel,
        activation=config.activation,
    )
    mlp_norm = norm(
        "pre_feedforward_layernorm" if config.has_post_norms else "post_attention_layernorm"
    )
    if config.has_post_norms:
        out = chain(out, norm("post_attention_layernorm"))
        mlp = chain(mlp, norm("post_feedforward_layernorm"))
    kind = config.layer_kinds[layer_index]
    attention = SelfAttention(
        QKVParallelLinear(attn, size, heads, ("q_proj", "k_proj", "v_proj"), bias=bias),
        PagedAttention(
            layer_index,
            config.query_pre_attn_scalar**-0.5,
            config.sliding_window if kind == SLIDING else None,
            soft_cap=config.attention_soft_cap,
        ),
        out,
        rotary=rotaries[kind],
        qk_norms=qk_norms,
    )
    return SequentialLayer(norm("input_layernorm"), attention, mlp_norm, mlp)
