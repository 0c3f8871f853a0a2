"""What is around the layers of a causal language model: embedding, final norm, head."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from worker_svc.layers.attention import AttentionMetadata
from worker_svc.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from worker_svc.layers.linear import HeadShare
from worker_svc.layers.norm import LayerNorm
from worker_svc.parallel.group import ParallelGroup

DecoderLayer = Callable[[torch.Tensor, torch.Tensor, AttentionMetadata], torch.Tensor]
"""From residual stream, positions and metadata to the residual stream after the layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackConfig:
    """Sizes that every family of decoders has; families add their switches.

    Attributes:
        vocab_size: number of token ids.
        max_position_embeddings: length a sequence may have when nobody sets a limit.
        max_context: longest limit that may be set.
        hidden_size: features of the residual stream.
        inner_size: features inside the MLP.
        num_layers: number of layers.
        num_heads: query heads.
        num_kv_heads: key/value heads.
        head_dim: features of a head.
        norm_eps: of every norm.
        activation: Hugging Face name.
        tie_word_embeddings: whether the head's weights are the embedding's.
    """

    vocab_size: int
    max_position_embeddings: int
    max_context: int
    hidden_size: int
    inner_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    activation: str
    tie_word_embeddings: bool

    def head_share(self, parallel: ParallelGroup) -> HeadShare:
        """Return the heads of a layer, and those of this rank."""
        return HeadShare(self.num_heads, self.num_kv_heads, self.head_dim, parallel)


class DecoderStack:
    """A causal language model of layers that a family has built.

    Args:
        heads: of every layer.
        embedding: of the tokens.
        layers: in order.
        final_norm: of what the last layer leaves.
        lm_head: from that to logits.
        embedding_norm: of the embeddings; None for none.

    Attributes:
        vocab_size: number of token ids.
        num_layers: number of key/value caches.
        heads: of every layer, and this rank's share of them.
        is_capturable: see CausalLM.
    """

    def __init__(
        self,
        heads: HeadShare,
        embedding: VocabParallelEmbedding,
        layers: Sequence[DecoderLayer],
        final_norm: LayerNorm,
        lm_head: ParallelLMHead,
        *,
        embedding_norm: LayerNorm | None = None,
    ) -> None:
        self.vocab_size = embedding.vocab_size
        self.num_layers = len(layers)
        self.is_capturable = True
        self.heads = heads
        self._embedding = embedding
        self._embedding_norm = embedding_norm
        self._layers = layers
        self._final_norm = final_norm
        self._lm_head = lm_head

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
        residual = self._embedding(input_ids)
        if self._embedding_norm is not None:
            residual = self._embedding_norm(residual)
        for layer in self._layers:
            residual = layer(residual, positions, metadata)
        return self._final_norm(residual)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, vocab_size] float32 of the rows that sample."""
        return self._lm_head(hidden)
