"""GPT-2: learned positions, layer norms first, weights stored as [in, out], tied head."""

from dataclasses import dataclass

import torch
import torch.nn.functional as functional

from worker_svc.layers.activation import plain_activation
from worker_svc.layers.attention import AttentionMetadata, PagedAttention
from worker_svc.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from worker_svc.layers.linear import (
    ColumnParallelLinear,
    HeadShare,
    QKVParallelLinear,
    RowParallelLinear,
)
from worker_svc.layers.norm import LayerNorm
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup


@dataclass(frozen=True, slots=True)
class GPT2Config:
    """Sizes and switches of a GPT-2.

    Attributes:
        vocab_size: number of token ids.
        max_position_embeddings: rows of the position table.
        hidden_size: features of the residual stream.
        inner_size: features inside the MLP.
        num_layers: number of blocks.
        num_heads: attention heads.
        layer_norm_eps: of every norm.
        activation: Hugging Face name.
        scales_by_head_dim: divide dot products by sqrt(head_dim).
        scales_by_layer: divide them by the layer's number, from 1, too.
        tie_word_embeddings: whether the head's weights are the embedding's.
    """

    vocab_size: int
    max_position_embeddings: int
    hidden_size: int
    inner_size: int
    num_layers: int
    num_heads: int
    layer_norm_eps: float
    activation: str
    scales_by_head_dim: bool
    scales_by_layer: bool
    tie_word_embeddings: bool

    @property
    def max_context(self) -> int:
        """Longest limit that may be set: positions are learned, there are no others."""
        return self.max_position_embeddings

    def attention_scale(self, layer_index: int) -> float:
        """Return the factor of the dot products in a layer."""
        scale = (self.hidden_size // self.num_heads) ** -0.5 if self.scales_by_head_dim else 1.0
        return scale / (layer_index + 1) if self.scales_by_layer else scale


def read_gpt2(hf: HfConfig) -> GPT2Config:
    """Return a GPT2LMHeadModel configuration.

    Raises:
        ModelLoadError: a key is missing, wrong or not served.
    """
    if hf.flag("add_cross_attention", False):
        raise hf.error("add_cross_attention", "true is not served here")
    hidden_size = hf.integer("n_embd", 768)
    return GPT2Config(
        vocab_size=hf.integer("vocab_size", 50257),
        max_position_embeddings=hf.integer("n_positions", 1024),
        hidden_size=hidden_size,
        inner_size=hf.integer("n_inner", 4 * hidden_size),
        num_layers=hf.integer("n_layer", 12),
        num_heads=hf.integer("n_head", 12),
        layer_norm_eps=hf.number("layer_norm_epsilon", 1e-5),
        activation=hf.text("activation_function", "gelu_new"),
        scales_by_head_dim=hf.flag("scale_attn_weights", True),
        scales_by_layer=hf.flag("scale_attn_by_inverse_layer_idx", False),
        tie_word_embeddings=hf.flag("tie_word_embeddings", True),
    )


class GPT2Block:
    """Attention and MLP, each reading a norm of the residual stream and adding to it."""

    def __init__(
        self, config: GPT2Config, weights: Weights, heads: HeadShare, layer_index: int
    ) -> None:
        size, eps, parallel = config.hidden_size, config.layer_norm_eps, heads.parallel
        attn, mlp = weights.scope("attn"), weights.scope("mlp")
        self._ln_1 = LayerNorm(weights, "ln_1", size, eps)
        self._qkv = QKVParallelLinear(attn, size, heads, ("c_attn",), bias=True, transposed=True)
        self._attention = PagedAttention(layer_index, config.attention_scale(layer_index))
        self._attn_out = RowParallelLinear(
            attn, "c_proj", size, size, parallel, bias=True, transposed=True
        )
        self._ln_2 = LayerNorm(weights, "ln_2", size, eps)
        self._mlp_in = ColumnParallelLinear(
            mlp, "c_fc", size, config.inner_size, parallel, bias=True, transposed=True
        )
        self._activation = plain_activation(config.activation)
        self._mlp_out = RowParallelLinear(
            mlp, "c_proj", config.inner_size, size, parallel, bias=True, transposed=True
        )

    def __call__(self, residual: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """Return the residual stream [rows, hidden_size] after this block."""
        query, key, value = self._qkv.split_heads(self._ln_1(residual))
        residual = residual + self._attn_out(self._attention(query, key, value, metadata))
        return residual + self._mlp_out(self._activation(self._mlp_in(self._ln_2(residual))))


class GPT2LMHeadModel:
    """A GPT-2 with its language-model head.

    Attributes:
        vocab_size: number of token ids.
        num_layers: number of key/value caches.
        heads: of every layer, and this rank's share of them.
        is_capturable: see CausalLM.
    """

    def __init__(
        self, config: GPT2Config, weights: Weights, parallel: ParallelGroup, max_model_len: int
    ) -> None:
        size = config.hidden_size
        self.vocab_size = config.vocab_size
        self.num_layers = config.num_layers
        self.is_capturable = True
        self.heads = HeadShare(
            config.num_heads, config.num_heads, size // config.num_heads, parallel
        )
        body = weights.scope_if_present("transformer", "wte.weight")
        self._wte = VocabParallelEmbedding(body, "wte", config.vocab_size, size, parallel)
        self._wpe = body.load(
            "wpe.weight", (config.max_position_embeddings, size), (range(max_model_len),)
        )
        blocks = body.scope("h")
        self._blocks = [
            GPT2Block(config, blocks.scope(str(index)), self.heads, index)
            for index in range(config.num_layers)
        ]
        self._ln_f = LayerNorm(body, "ln_f", size, config.layer_norm_eps)
        if config.tie_word_embeddings:
            self._lm_head = ParallelLMHead(self._wte.weight, config.vocab_size, parallel)
        else:
            self._lm_head = ParallelLMHead.load(
                weights, "lm_head", config.vocab_size, size, parallel
            )

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return the last hidden states [rows, hidden_size].

        Mutates: the caches of `metadata`.
        """
        residual = self._wte(input_ids) + functional.embedding(positions, self._wpe)
        for block in self._blocks:
            residual = block(residual, metadata)
        return self._ln_f(residual)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, vocab_size] float32 of the rows that sample."""
        return self._lm_head(hidden)
