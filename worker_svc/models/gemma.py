"""Gemma, Gemma 2 and Gemma 3: scaled embeddings, norms by 1 + weight, capped logits, windows.

From Gemma 2 on, norms stand before and after attention and MLP, and layers that see a window
alternate with layers that see everything.
"""

from dataclasses import dataclass

import torch

from worker_svc import ops
from worker_svc.layers.attention import AttentionMetadata, PagedAttention
from worker_svc.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from worker_svc.layers.gated_mlp import GatedMLP
from worker_svc.layers.linear import HeadShare, QKVParallelLinear, RowParallelLinear
from worker_svc.layers.rope_scaling import RopeParameters
from worker_svc.layers.rotary import RotaryEmbedding
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class GemmaConfig:
    """Sizes and switches of a Gemma.

    Attributes:
        vocab_size: number of token ids.
        hidden_size: features of the residual stream.
        intermediate_size: features inside the MLP.
        num_heads: query heads.
        num_kv_heads: key/value heads.
        head_dim: features of a head.
        rms_norm_eps: of every norm.
        activation: Hugging Face name of the gate's activation.
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

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    activation: str
    query_pre_attn_scalar: float
    attention_soft_cap: float | None
    final_soft_cap: float | None
    has_post_norms: bool
    has_qk_norm: bool
    attention_bias: bool
    sliding_window: int | None
    layer_kinds: tuple[str, ...]
    ropes: dict[str, RopeParameters]

    @property
    def max_position_embeddings(self) -> int:
        """Length a sequence may have when nobody sets a limit."""
        return self.ropes[FULL].max_position_embeddings

    @property
    def max_context(self) -> int:
        """Longest limit that may be set."""
        return self.ropes[FULL].max_context


def read_gemma(hf: HfConfig) -> GemmaConfig:
    """Return a GemmaForCausalLM configuration.

    Raises:
        ModelLoadError: a key is missing, wrong or not served.
    """
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
    """Return a Gemma2ForCausalLM configuration.

    Raises:
        ModelLoadError: a key is missing, wrong or not served.
    """
    rope = RopeParameters.read(hf, hf.integer("max_position_embeddings", 8192))
    return _config(hf, ropes={SLIDING: rope, FULL: rope}, window_every=2, default_cap=50.0)


def read_gemma3(hf: HfConfig) -> GemmaConfig:
    """Return a Gemma3ForCausalLM configuration.

    Raises:
        ModelLoadError: a key is missing, wrong or not served.
    """
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
        raise hf.error("use_bidirectional_attention", "true is not served here")
    num_layers = hf.integer("num_hidden_layers", 26)
    num_heads = hf.integer("num_attention_heads", 8)
    if query_pre_attn_scalar is None:
        query_pre_attn_scalar = hf.number("query_pre_attn_scalar", 256)
    act = "hidden_act" if is_first and "hidden_activation" not in hf else "hidden_activation"
    return GemmaConfig(
        vocab_size=hf.integer("vocab_size"),
        hidden_size=hf.integer("hidden_size"),
        intermediate_size=hf.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=hf.integer("num_key_value_heads", num_heads),
        head_dim=hf.integer("head_dim", 256),
        rms_norm_eps=hf.number("rms_norm_eps", 1e-6),
        # The first checkpoints say "gelu" and mean its approximation.
        activation=_activation(hf.text(act, "gelu_pytorch_tanh")),
        query_pre_attn_scalar=query_pre_attn_scalar,
        attention_soft_cap=None if is_first else _cap(hf, "attn_logit_softcapping", default_cap),
        final_soft_cap=(
            None if is_first else _cap(hf, "final_logit_softcapping", default_cap and 30.0)
        ),
        has_post_norms=not is_first,
        has_qk_norm=has_qk_norm,
        attention_bias=hf.flag("attention_bias", False),
        sliding_window=None if is_first else hf.integer("sliding_window", 4096),
        layer_kinds=_layer_kinds(hf, num_layers, window_every),
        ropes=ropes,
    )


def _activation(name: str) -> str:
    return "gelu_pytorch_tanh" if name == "gelu" else name


def _cap(hf: HfConfig, key: str, default: float | None) -> float | None:
    if key in hf:
        return hf.number(key)
    # Written as null, it means none.
    return None if key in hf.names() else default


def _layer_kinds(hf: HfConfig, num_layers: int, window_every: int) -> tuple[str, ...]:
    """Return the kind of each layer; without a list, each `window_every`-th one sees everything."""
    if "layer_types" not in hf:
        return tuple(
            FULL if (index + 1) % window_every == 0 else SLIDING for index in range(num_layers)
        )
    kinds = hf.texts("layer_types")
    if len(kinds) != num_layers or not {SLIDING, FULL} >= set(kinds):
        raise hf.error(
            "layer_types", f"must name {SLIDING} or {FULL} for each of {num_layers} layers"
        )
    return tuple(kinds)


class GemmaRMSNorm:
    """x / rms(x) * (1 + weight), in float32 throughout."""

    def __init__(self, weights: Weights, name: str, size: int, eps: float) -> None:
        self._weight = weights.load(f"{name}.weight", (size,)).float() + 1.0
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm over the last dimension of x, [rows, size] or [rows, heads, size]."""
        wide = x.float().contiguous()
        out = torch.empty_like(wide)
        ops.rms_norm(out, wide, self._weight, self._eps)
        return out.to(x.dtype)


class GemmaLayer:
    """Attention and MLP around the residual stream."""

    def __init__(
        self,
        config: GemmaConfig,
        weights: Weights,
        heads: HeadShare,
        rotary: RotaryEmbedding,
        layer_index: int,
    ) -> None:
        size, bias = config.hidden_size, config.attention_bias

        def norm(name: str, scope: Weights = weights, width: int = size) -> GemmaRMSNorm:
            return GemmaRMSNorm(scope, name, width, config.rms_norm_eps)

        attn = weights.scope("self_attn")
        self._input_norm = norm("input_layernorm")
        self._qkv_proj = QKVParallelLinear(
            attn, size, heads, ("q_proj", "k_proj", "v_proj"), bias=bias
        )
        self._qk_norms: tuple[GemmaRMSNorm, GemmaRMSNorm] | None = None
        if config.has_qk_norm:
            self._qk_norms = (
                norm("q_norm", attn, config.head_dim),
                norm("k_norm", attn, config.head_dim),
            )
        self._rotary = rotary
        is_sliding = config.layer_kinds[layer_index] == SLIDING
        self._attention = PagedAttention(
            layer_index,
            config.query_pre_attn_scalar**-0.5,
            config.sliding_window if is_sliding else None,
            soft_cap=config.attention_soft_cap,
        )
        inner = config.num_heads * config.head_dim
        self._o_proj = RowParallelLinear(attn, "o_proj", inner, size, heads.parallel, bias=bias)
        self._post_norms: tuple[GemmaRMSNorm, GemmaRMSNorm] | None = None
        if config.has_post_norms:
            self._mlp_norm = norm("pre_feedforward_layernorm")
            self._post_norms = norm("post_attention_layernorm"), norm("post_feedforward_layernorm")
        else:
            self._mlp_norm = norm("post_attention_layernorm")
        self._mlp = GatedMLP(
            weights.scope("mlp"),
            size,
            config.intermediate_size,
            heads.parallel,
            activation=config.activation,
        )

    def __call__(
        self, residual: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return the residual stream [rows, hidden_size] after this layer."""
        attended = self._attend(self._input_norm(residual), positions, metadata)
        if self._post_norms is not None:
            attended = self._post_norms[0](attended)
        residual = residual + attended
        transformed = self._mlp(self._mlp_norm(residual))
        if self._post_norms is not None:
            transformed = self._post_norms[1](transformed)
        return residual + transformed

    def _attend(
        self, hidden: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        query, key, value = self._qkv_proj.split_heads(hidden)
        if self._qk_norms is not None:
            query, key = self._qk_norms[0](query), self._qk_norms[1](key)
        heads = self._attention.rotated(self._rotary, positions, query, key, value, metadata)
        return self._o_proj(heads)


class GemmaForCausalLM:
    """A Gemma with its language-model head, whose weights are the embedding's.

    Attributes:
        vocab_size: number of token ids.
        num_layers: number of key/value caches.
        heads: of every layer, and this rank's share of them.
        is_capturable: see CausalLM.
    """

    def __init__(
        self, config: GemmaConfig, weights: Weights, parallel: ParallelGroup, max_model_len: int
    ) -> None:
        self.vocab_size = config.vocab_size
        self.num_layers = len(config.layer_kinds)
        self.is_capturable = True
        self.heads = HeadShare(config.num_heads, config.num_kv_heads, config.head_dim, parallel)
        body = weights.scope_if_present("model", "embed_tokens.weight")
        self._embed_tokens = VocabParallelEmbedding(
            body, "embed_tokens", config.vocab_size, config.hidden_size, parallel
        )
        # Rounded to the model's type, as it was when the model was trained.
        self._embedding_scale = torch.tensor(config.hidden_size**0.5, dtype=weights.dtype)
        rotaries = {
            kind: RotaryEmbedding(rope, config.head_dim, max_model_len, weights.device)
            for kind, rope in config.ropes.items()
        }
        layers = body.scope("layers")
        self._layers = [
            GemmaLayer(config, layers.scope(str(index)), self.heads, rotaries[kind], index)
            for index, kind in enumerate(config.layer_kinds)
        ]
        self._norm = GemmaRMSNorm(body, "norm", config.hidden_size, config.rms_norm_eps)
        self._lm_head = ParallelLMHead(self._embed_tokens.weight, config.vocab_size, parallel)
        self._final_soft_cap = config.final_soft_cap

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return the last hidden states [rows, hidden_size].

        Mutates: the caches of `metadata`.
        """
        residual = self._embed_tokens(input_ids) * self._embedding_scale
        for layer in self._layers:
            residual = layer(residual, positions, metadata)
        return self._norm(residual)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, vocab_size] float32 of the rows that sample."""
        logits = self._lm_head(hidden)
        if self._final_soft_cap is None:
            return logits
        return torch.tanh(logits / self._final_soft_cap) * self._final_soft_cap
