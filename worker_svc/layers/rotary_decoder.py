"""The decoder that Llama made common: RMS norms first, rotary attention, gated MLP.

Families differ in a few switches, which their files set; the arithmetic is written here once.
"""

from dataclasses import dataclass

import torch

from worker_svc.layers.attention import AttentionMetadata, PagedAttention
from worker_svc.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from worker_svc.layers.gated_mlp import GatedMLP
from worker_svc.layers.linear import HeadShare, QKVParallelLinear, RowParallelLinear
from worker_svc.layers.moe import MoEConfig, SparseMoE
from worker_svc.layers.norm import RMSNorm
from worker_svc.layers.rope_scaling import RopeParameters
from worker_svc.layers.rotary import RotaryEmbedding
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup


@dataclass(frozen=True, slots=True)
class RotaryDecoderConfig:
    """Sizes and switches of a decoder.

    Attributes:
        vocab_size: number of token ids.
        hidden_size: features of the residual stream.
        intermediate_size: features inside the MLP.
        num_layers: number of decoder layers.
        num_heads: query heads.
        num_kv_heads: key/value heads.
        head_dim: features of a head.
        rms_norm_eps: of every norm.
        activation: Hugging Face name of the gate's activation.
        rope: of the rotary embedding.
        tie_word_embeddings: whether the head's weights are the embedding's.
        qkv_bias: whether query, key and value projections have a bias.
        output_bias: whether attention's output projection has one.
        mlp_bias: whether the MLP's layers have one.
        has_qk_norm: whether each head's query and key are normed before they are rotated.
        sliding_windows: [num_layers] tokens each layer sees; None sees all.
        fused_projections: whether query, key and value are stored as one layer, qkv_proj, and the
            MLP's gate and up as another, gate_up_proj.
        moe: of the layers that have experts in the place of one MLP; None where no layer has.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    activation: str
    rope: RopeParameters
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    has_qk_norm: bool
    sliding_windows: tuple[int | None, ...]
    fused_projections: bool = False
    moe: MoEConfig | None = None

    @property
    def max_position_embeddings(self) -> int:
        """Length a sequence may have when nobody sets a limit."""
        return self.rope.max_position_embeddings

    @property
    def max_context(self) -> int:
        """Longest limit that may be set."""
        return self.rope.max_context


class RotaryAttention:
    """Self-attention of a layer with rotary positions."""

    def __init__(
        self,
        config: RotaryDecoderConfig,
        weights: Weights,
        heads: HeadShare,
        rotary: RotaryEmbedding,
        layer_index: int,
    ) -> None:
        self._qkv_proj = QKVParallelLinear(
            weights,
            config.hidden_size,
            heads,
            ("qkv_proj",) if config.fused_projections else ("q_proj", "k_proj", "v_proj"),
            bias=config.qkv_bias,
        )
        self._qk_norms: tuple[RMSNorm, RMSNorm] | None = None
        if config.has_qk_norm:
            self._qk_norms = (
                RMSNorm(weights, "q_norm", heads.head_dim, config.rms_norm_eps),
                RMSNorm(weights, "k_norm", heads.head_dim, config.rms_norm_eps),
            )
        self._rotary = rotary
        self._attention = PagedAttention(
            layer_index, heads.head_dim**-0.5, config.sliding_windows[layer_index]
        )
        self._o_proj = RowParallelLinear(
            weights,
            "o_proj",
            config.num_heads * config.head_dim,
            config.hidden_size,
            heads.parallel,
            bias=config.output_bias,
        )

    def __call__(
        self, hidden: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return [rows, hidden_size]."""
        query, key, value = self._qkv_proj.split_heads(hidden)
        if self._qk_norms is not None:
            query_norm, key_norm = self._qk_norms
            query, key = query_norm(query), key_norm(key)
        heads = self._attention.rotated(self._rotary, positions, query, key, value, metadata)
        return self._o_proj(heads)


class RotaryDecoderLayer:
    """Attention and MLP, each reading a norm of the residual stream and adding to it."""

    def __init__(
        self,
        config: RotaryDecoderConfig,
        weights: Weights,
        heads: HeadShare,
        rotary: RotaryEmbedding,
        layer_index: int,
    ) -> None:
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_norm = RMSNorm(weights, "input_layernorm", size, eps)
        self.attention = RotaryAttention(
            config, weights.scope("self_attn"), heads, rotary, layer_index
        )
        self.post_attention_norm = RMSNorm(weights, "post_attention_layernorm", size, eps)
        self.mlp: GatedMLP | SparseMoE
        if config.moe is None or layer_index in config.moe.dense_layers:
            self.mlp = GatedMLP(
                weights.scope("mlp"),
                size,
                config.intermediate_size,
                heads.parallel,
                activation=config.activation,
                bias=config.mlp_bias,
                is_fused=config.fused_projections,
            )
        else:
            self.mlp = SparseMoE(config.moe, weights, size, heads.parallel, config.activation)


class RotaryDecoder:
    """A causal language model of this kind, with weights named as Llama's.

    Attributes:
        vocab_size: number of token ids.
        num_layers: number of key/value caches.
        heads: of every layer, and this rank's share of them.
        is_capturable: see CausalLM.
    """

    def __init__(
        self,
        config: RotaryDecoderConfig,
        weights: Weights,
        parallel: ParallelGroup,
        max_model_len: int,
    ) -> None:
        self.vocab_size = config.vocab_size
        self.num_layers = config.num_layers
        self.is_capturable = config.moe is None
        self.heads = HeadShare(config.num_heads, config.num_kv_heads, config.head_dim, parallel)
        body = weights.scope_if_present("model", "embed_tokens.weight")
        self._embed_tokens = VocabParallelEmbedding(
            body, "embed_tokens", config.vocab_size, config.hidden_size, parallel
        )
        rotary_dim = config.rope.rotary_dim(config.head_dim)
        rotary = RotaryEmbedding(config.rope, rotary_dim, max_model_len, weights.device)
        layers = body.scope("layers")
        self._layers = [
            RotaryDecoderLayer(config, layers.scope(str(index)), self.heads, rotary, index)
            for index in range(config.num_layers)
        ]
        self._norm = RMSNorm(body, "norm", config.hidden_size, config.rms_norm_eps)
        if config.tie_word_embeddings:
            self._lm_head = ParallelLMHead(self._embed_tokens.weight, config.vocab_size, parallel)
        else:
            self._lm_head = ParallelLMHead.load(
                weights, "lm_head", config.vocab_size, config.hidden_size, parallel
            )

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return the last hidden states [rows, hidden_size].

        Mutates: the caches of `metadata`.

        Args:
            input_ids: [rows] int64.
            positions: [rows] int64.
            metadata: of the step.
        """
        residual = self._embed_tokens(input_ids)
        hidden = self._layers[0].input_norm(residual)
        for index, layer in enumerate(self._layers):
            if index > 0:
                hidden = layer.input_norm.add_and_norm(hidden, residual)
            hidden = layer.attention(hidden, positions, metadata)
            hidden = layer.post_attention_norm.add_and_norm(hidden, residual)
            hidden = layer.mlp(hidden)
        return self._norm.add_and_norm(hidden, residual)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, vocab_size] float32 of the rows that sample."""
        return self._lm_head(hidden)
