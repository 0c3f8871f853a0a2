"""OPT: learned positions with an offset, norms before or after, maybe narrow embeddings."""

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
    ReplicatedLinear,
    RowParallelLinear,
)
from worker_svc.layers.norm import LayerNorm
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup

POSITION_OFFSET = 2
LAYER_NORM_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class OPTConfig:
    """Sizes and switches of an OPT.

    Attributes:
        vocab_size: number of token ids.
        max_position_embeddings: rows of the position table, the offset not counted.
        hidden_size: features of the residual stream.
        embedding_size: features of a token embedding; other than hidden_size in OPT-350m.
        inner_size: features inside the MLP.
        num_layers: number of layers.
        num_heads: attention heads.
        activation: Hugging Face name.
        norm_first: norms before attention and MLP; after them in OPT-350m.
        has_final_norm: whether a norm follows the last layer.
        has_bias: whether linear layers have one.
        affine_norms: whether norms have weights.
        tie_word_embeddings: whether the head's weights are the embedding's.
    """

    vocab_size: int
    max_position_embeddings: int
    hidden_size: int
    embedding_size: int
    inner_size: int
    num_layers: int
    num_heads: int
    activation: str
    norm_first: bool
    has_final_norm: bool
    has_bias: bool
    affine_norms: bool
    tie_word_embeddings: bool

    @property
    def max_context(self) -> int:
        """Longest limit that may be set: positions are learned, there are no others."""
        return self.max_position_embeddings


def read_opt(hf: HfConfig) -> OPTConfig:
    """Return an OPTForCausalLM configuration.

    Raises:
        ModelLoadError: a key is missing, wrong or not served.
    """
    hidden_size = hf.integer("hidden_size", 768)
    norm_first = hf.flag("do_layer_norm_before", True)
    return OPTConfig(
        vocab_size=hf.integer("vocab_size", 50272),
        max_position_embeddings=hf.integer("max_position_embeddings", 2048),
        hidden_size=hidden_size,
        embedding_size=hf.integer("word_embed_proj_dim", hidden_size),
        inner_size=hf.integer("ffn_dim", 3072),
        num_layers=hf.integer("num_hidden_layers", 12),
        num_heads=hf.integer("num_attention_heads", 12),
        activation=hf.text("activation_function", "relu"),
        norm_first=norm_first,
        has_final_norm=norm_first and not hf.flag("_remove_final_layer_norm", False),
        has_bias=hf.flag("enable_bias", True),
        affine_norms=hf.flag("layer_norm_elementwise_affine", True),
        tie_word_embeddings=hf.flag("tie_word_embeddings", True),
    )


class OPTLayer:
    """Attention and MLP around the residual stream, with the norm on the side the config says."""

    def __init__(
        self, config: OPTConfig, weights: Weights, heads: HeadShare, layer_index: int
    ) -> None:
        size, parallel, bias = config.hidden_size, heads.parallel, config.has_bias
        attn = weights.scope("self_attn")
        self._norm_first = config.norm_first
        self._attention_norm = _norm(config, weights, "self_attn_layer_norm")
        self._qkv = QKVParallelLinear(attn, size, heads, ("q_proj", "k_proj", "v_proj"), bias=bias)
        self._attention = PagedAttention(layer_index, heads.head_dim**-0.5)
        self._attn_out = RowParallelLinear(attn, "out_proj", size, size, parallel, bias=bias)
        self._mlp_norm = _norm(config, weights, "final_layer_norm")
        self._fc1 = ColumnParallelLinear(
            weights, "fc1", size, config.inner_size, parallel, bias=bias
        )
        self._activation = plain_activation(config.activation)
        self._fc2 = RowParallelLinear(weights, "fc2", config.inner_size, size, parallel, bias=bias)

    def __call__(self, residual: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """Return the residual stream [rows, hidden_size] after this layer."""
        if self._norm_first:
            residual = residual + self._attend(self._attention_norm(residual), metadata)
            return residual + self._mlp(self._mlp_norm(residual))
        residual = self._attention_norm(residual + self._attend(residual, metadata))
        return self._mlp_norm(residual + self._mlp(residual))

    def _attend(self, hidden: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        query, key, value = self._qkv.split_heads(hidden)
        return self._attn_out(self._attention(query, key, value, metadata))

    def _mlp(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._fc2(self._activation(self._fc1(hidden)))


class OPTForCausalLM:
    """An OPT with its language-model head.

    Attributes:
        vocab_size: number of token ids.
        num_layers: number of key/value caches.
        heads: of every layer, and this rank's share of them.
        is_capturable: see CausalLM.
    """

    def __init__(
        self, config: OPTConfig, weights: Weights, parallel: ParallelGroup, max_model_len: int
    ) -> None:
        size, narrow = config.hidden_size, config.embedding_size
        self.vocab_size = config.vocab_size
        self.num_layers = config.num_layers
        self.is_capturable = True
        self.heads = HeadShare(
            config.num_heads, config.num_heads, size // config.num_heads, parallel
        )
        body = weights.scope_if_present("model", "decoder.embed_tokens.weight").scope("decoder")
        self._embed_tokens = VocabParallelEmbedding(
            body, "embed_tokens", config.vocab_size, narrow, parallel
        )
        self._embed_positions = body.load(
            "embed_positions.weight",
            (config.max_position_embeddings + POSITION_OFFSET, size),
            (range(POSITION_OFFSET, POSITION_OFFSET + max_model_len),),
        )
        self._project_in: ReplicatedLinear | None = None
        self._project_out: ReplicatedLinear | None = None
        if narrow != size:
            self._project_in = ReplicatedLinear(body, "project_in", narrow, size, bias=False)
            self._project_out = ReplicatedLinear(body, "project_out", size, narrow, bias=False)
        layers = body.scope("layers")
        self._layers = [
            OPTLayer(config, layers.scope(str(index)), self.heads, index)
            for index in range(config.num_layers)
        ]
        self._final_norm: LayerNorm | None = None
        if config.has_final_norm:
            self._final_norm = _norm(config, body, "final_layer_norm")
        if config.tie_word_embeddings:
            self._lm_head = ParallelLMHead(self._embed_tokens.weight, config.vocab_size, parallel)
        else:
            self._lm_head = ParallelLMHead.load(
                weights, "lm_head", config.vocab_size, narrow, parallel
            )

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return the last hidden states [rows, embedding_size].

        Mutates: the caches of `metadata`.
        """
        residual = self._embed_tokens(input_ids)
        if self._project_in is not None:
            residual = self._project_in(residual)
        residual = residual + functional.embedding(positions, self._embed_positions)
        for layer in self._layers:
            residual = layer(residual, metadata)
        if self._final_norm is not None:
            residual = self._final_norm(residual)
        return residual if self._project_out is None else self._project_out(residual)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, vocab_size] float32 of the rows that sample."""
        return self._lm_head(hidden)


def _norm(config: OPTConfig, weights: Weights, name: str) -> LayerNorm:
    return LayerNorm(weights, name, config.hidden_size, LAYER_NORM_EPS, config.affine_norms)
