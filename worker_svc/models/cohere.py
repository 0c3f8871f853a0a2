"""Cohere (Command R) and Cohere 2: attention and MLP side by side, norms without bias.

Neighbouring features are rotated together. In Cohere 2, layers that see everything rotate nothing.
"""

from dataclasses import dataclass
from functools import partial

from worker_svc.layers.attention import PagedAttention
from worker_svc.layers.decoder_stack import DecoderConfig, DecoderStack
from worker_svc.layers.gated_mlp import GatedMLP
from worker_svc.layers.linear import HeadShare, QKVParallelLinear, RowParallelLinear
from worker_svc.layers.norm import HeadsLayerNorm, LayerNorm
from worker_svc.layers.residual import DecoderLayer, ParallelLayer
from worker_svc.layers.rope_scaling import DEFAULT_THETA, RopeParameters
from worker_svc.layers.rotary import RotaryEmbedding
from worker_svc.layers.self_attention import SelfAttention
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.models.sliding_windows import DEFAULT_SLIDING_WINDOW, SLIDING, read_layer_types
from worker_svc.parallel.group import ParallelGroup

DEFAULT_COHERE_THETA = 500_000.0
DEFAULT_WINDOW_PATTERN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CohereConfig(DecoderConfig):
    """Sizes and switches of a Cohere.

    Attributes:
        rope: of the rotary embedding.
        rotates: [num_layers] whether query and key are rotated.
        sliding_windows: [num_layers] tokens that each layer sees; None sees all.
        attention_bias: whether attention's projections have a bias.
        has_qk_norm: whether each head's query and key are normed before they are rotated.
        logit_scale: factor of the logits.
    """

    rope: RopeParameters
    rotates: tuple[bool, ...]
    sliding_windows: tuple[int | None, ...]
    attention_bias: bool
    has_qk_norm: bool
    logit_scale: float


def read_cohere(hf: HfConfig) -> CohereConfig:
    """Return a CohereForCausalLM configuration; see ModelFamily."""
    return _config(hf, DEFAULT_COHERE_THETA, hf.flag("use_qk_norm", False), windows=None)


def read_cohere2(hf: HfConfig) -> CohereConfig:
    """Return a Cohere2ForCausalLM configuration; see ModelFamily."""
    window = hf.integer("sliding_window", DEFAULT_SLIDING_WINDOW)
    every = hf.integer("sliding_window_pattern", DEFAULT_WINDOW_PATTERN)
    kinds = read_layer_types(hf, hf.integer("num_hidden_layers", 40), every)
    windows = tuple(window if kind == SLIDING else None for kind in kinds)
    return _config(hf, DEFAULT_THETA, False, windows)


def _config(
    hf: HfConfig,
    default_theta: float,
    has_qk_norm: bool,
    windows: tuple[int | None, ...] | None,
) -> CohereConfig:
    hidden_size = hf.integer("hidden_size", 8192)
    num_heads = hf.integer("num_attention_heads", 64)
    num_layers = hf.integer("num_hidden_layers", 40)
    rope = RopeParameters.read(
        hf, hf.integer("max_position_embeddings", 8192), default_theta=default_theta
    )
    return CohereConfig(
        vocab_size=hf.integer("vocab_size", 256_000),
        max_position_embeddings=rope.max_position_embeddings,
        max_context=rope.max_context,
        hidden_size=hidden_size,
        intermediate_size=hf.integer("intermediate_size", 22_528),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=hf.integer("num_key_value_heads", num_heads),
        head_dim=hf.integer("head_dim", max(hidden_size // num_heads, 1)),
        norm_eps=hf.number("layer_norm_eps", 1e-5),
        activation=hf.text("hidden_act", "silu"),
        tie_word_embeddings=hf.flag("tie_word_embeddings", True),
        rope=rope,
        rotates=(
            (True,) * num_layers if windows is None else tuple(each is not None for each in windows)
        ),
        sliding_windows=(None,) * num_layers if windows is None else windows,
        attention_bias=hf.flag("attention_bias", False),
        has_qk_norm=has_qk_norm,
        logit_scale=hf.number("logit_scale", 0.0625),
    )


def build_cohere(
    config: CohereConfig, weights: Weights, parallel: ParallelGroup, max_model_len: int
) -> DecoderStack:
    """Return the model with its weights loaded; see ModelFamily."""
    body = weights.scope_if_present("model", "embed_tokens.weight")
    rotary = RotaryEmbedding(
        config.rope, config.head_dim, max_model_len, weights.device, is_neox=False
    )
    return DecoderStack(
        config,
        parallel,
        weights,
        body,
        partial(_layer, config, rotary),
        LayerNorm(body, "norm", config.hidden_size, config.norm_eps, bias=False),
        embedding="embed_tokens",
        layers="layers",
        logit_scale=config.logit_scale,
    )


def _layer(
    config: CohereConfig,
    rotary: RotaryEmbedding,
    weights: Weights,
    heads: HeadShare,
    layer_index: int,
) -> DecoderLayer:
    size, bias = config.hidden_size, config.attention_bias
    attn = weights.scope("self_attn")

    def head_norm(name: str, total_heads: int, own: range) -> HeadsLayerNorm:
        weight = attn.load(f"{name}.weight", (total_heads, heads.head_dim), (own,))
        return HeadsLayerNorm(weight, config.norm_eps)

    qk_norms: tuple[HeadsLayerNorm, HeadsLayerNorm] | None = None
    if config.has_qk_norm:
        qk_norms = (
            head_norm("q_norm", heads.total_heads, heads.heads),
            head_norm("k_norm", heads.total_kv_heads, heads.kv_heads),
        )
    width = heads.total_heads * heads.head_dim
    attention = SelfAttention(
        QKVParallelLinear(attn, size, heads, ("q_proj", "k_proj", "v_proj"), bias=bias),
        PagedAttention(layer_index, heads.head_dim**-0.5, config.sliding_windows[layer_index]),
        RowParallelLinear(attn, "o_proj", width, size, heads.parallel, bias=bias),
        rotary=rotary if config.rotates[layer_index] else None,
        qk_norms=qk_norms,
    )
    mlp = GatedMLP(
        weights.scope("mlp"),
        size,
        config.intermediate_size,
        heads.parallel,
        activation=config.activation,
    )
    norm = LayerNorm(weights, "input_layernorm", size, config.norm_eps, bias=False)
    return ParallelLayer(norm, attention, None, mlp)
