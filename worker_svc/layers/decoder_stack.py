"""What is around the layers of a causal language model: embedding, final norm, head."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker_svc.layers.attention import AttentionMetadata
from worker_svc.layers.chain import TensorFunction
from worker_svc.layers.embedding import ParallelLMHead, PositionEmbedding
from worker_svc.layers.linear import HeadShare
from worker_svc.layers.norm import Norm
from worker_svc.layers.residual import DecoderLayer, ResidualStream
from worker_svc.parallel.group import ParallelGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes that every family of decoders has; families add their switches.

    Attributes:
        vocab_size: number of token ids.
        max_position_embeddings: default length limit of a sequence, in tokens.
        max_context: longest limit that may be set, in tokens.
        hidden_size: features of the residual stream.
        intermediate_size: features inside the MLP.
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
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    activation: str
    tie_word_embeddings: bool

    def head_share(self, parallel: ParallelGroup) -> HeadShare:
        """Return the heads of a layer, and those of this rank.

        Raises:
            ModelLoadError: sizes that the kernels do not serve.
        """
        return HeadShare(self.num_heads, self.num_kv_heads, self.head_dim, parallel)


class DecoderStack:
    """A causal language model of layers that a family has built.

    Args:
        heads: of every layer.
        embedding: from token ids [rows] to memory of its own, [rows, hidden_size].
        layers: in order.
        final_norm: of what the last layer leaves; None for none.
        lm_head: from that to logits.
        positions: added to the embeddings; None for none.
        project_out: from what the final norm returns to what the head reads; None for none.
        is_capturable: see CausalLM.

    Attributes:
        vocab_size: number of token ids.
        num_layers: number of key/value caches.
        heads: of every layer, and this rank's share of them.
        is_capturable: see CausalLM.
    """

    def __init__(
        self,
        heads: HeadShare,
        embedding: TensorFunction,
        layers: Sequence[DecoderLayer],
        final_norm: Norm | None,
        lm_head: ParallelLMHead,
        *,
        positions: PositionEmbedding | None = None,
        project_out: TensorFunction | None = None,
        is_capturable: bool = True,
    ) -> None:
        self.vocab_size = lm_head.vocab_size
        self.num_layers = len(layers)
        self.is_capturable = is_capturable
        self.heads = heads
        self._embedding = embedding
        self._positions = positions
        self._layers = layers
        self._final_norm = final_norm
        self._project_out = project_out
        self._lm_head = lm_head

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return the last hidden states, [rows, features that the head reads].

        Mutates: the caches of `metadata`.

        Args:
            input_ids: [rows] int64.
            positions: [rows] int64.
            metadata: of the step.
        """
        embedded = self._embedding(input_ids)
        if self._positions is not None:
            embedded = embedded + self._positions(positions)
        stream = ResidualStream(embedded)
        for layer in self._layers:
            layer(stream, positions, metadata)
        hidden = stream.value if self._final_norm is None else stream.normed(self._final_norm)
        return hidden if self._project_out is None else self._project_out(hidden)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, vocab_size] float32.

        Args:
            hidden: of the rows that sample, as `forward` returns them.
        """
        return self._lm_head(hidden)
