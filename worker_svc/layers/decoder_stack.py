"""What is around the layers of a causal language model: embedding, final norm, head."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from worker_svc.layers.attention import AttentionMetadata
from worker_svc.layers.chain import TensorFunction
from worker_svc.layers.embedding import (
    NoHead,
    ParallelLMHead,
    PositionEmbedding,
    VocabParallelEmbedding,
)
from worker_svc.layers.linear import HeadShare
from worker_svc.layers.norm import Norm
from worker_svc.layers.residual import DecoderLayer, ResidualStream
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup

LayerBuilder = Callable[[Weights, HeadShare, int], DecoderLayer]
"""From a layer's weights, the heads of every layer, and the layer's number."""


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
        has_head: whether there is a head; without, the model gives vectors only.
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
    has_head: bool = True

    @property
    def value_size(self) -> int | None:
        """Elements of a value that is part of its cached key; see ModelConfig."""
        return None

    def head_share(self, parallel: ParallelGroup) -> HeadShare:
        """Return the heads of a layer, and those of this rank.

        Raises:
            ModelLoadError: sizes that the kernels do not serve.
        """
        return HeadShare(
            self.num_heads, self.num_kv_heads, self.head_dim, parallel, self.value_size
        )


class DecoderStack:
    """A causal language model of layers that a family has built.

    Args:
        config: its sizes.
        parallel: the group.
        weights: scope of the head.
        body: scope of everything before it.
        build_layer: builds the layers, in order.
        final_norm: of what the last layer leaves; None for none.
        embedding: name of the embedding.
        layers: scope of the layers, each a scope of it named by its number.
        head: name of the head, whose weights may be the embedding's.
        head_bias: whether the head has one.
        soft_cap: of the logits; None for none.
        logit_scale: factor of the logits.
        embedding_size: features of an embedding; None for hidden_size.
        project_in: from an embedding to what the first layer reads; None for none.
        positions: added to the embeddings; None for none.
        project_out: from what the final norm returns to what the head reads; None for none.
        is_capturable: see CausalLM.

    Raises:
        ModelLoadError: a tensor is missing or misshapen, or the ranks cannot share a layer.
    """

    def __init__(
        self,
        config: DecoderConfig,
        parallel: ParallelGroup,
        weights: Weights,
        body: Weights,
        build_layer: LayerBuilder,
        final_norm: Norm | None,
        *,
        embedding: str,
        layers: str,
        head: str = "lm_head",
        head_bias: bool = False,
        soft_cap: float | None = None,
        logit_scale: float = 1.0,
        embedding_size: int | None = None,
        project_in: TensorFunction | None = None,
        positions: PositionEmbedding | None = None,
        project_out: TensorFunction | None = None,
        is_capturable: bool = True,
    ) -> None:
        self.vocab_size = config.vocab_size
        self.hidden_size = (embedding_size if project_out else None) or config.hidden_size
        self.num_layers = config.num_layers
        self.is_capturable = is_capturable
        self.heads = config.head_share(parallel)
        self._embedding = VocabParallelEmbedding(
            body, embedding, config.vocab_size, embedding_size or config.hidden_size, parallel
        )
        self._project_in = project_in
        self._positions = positions
        scope = body.scope(layers)
        self._layers = [
            build_layer(scope.scope(str(index)), self.heads, index)
            for index in range(config.num_layers)
        ]
        self._final_norm = final_norm
        self._project_out = project_out
        self._lm_head: TensorFunction = NoHead(config.vocab_size)
        if config.has_head:
            self._lm_head = ParallelLMHead.tied_or_own(
                weights,
                head,
                self._embedding,
                parallel,
                tied=config.tie_word_embeddings,
                bias=head_bias,
                soft_cap=soft_cap,
                scale=logit_scale,
            )

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """See CausalLM."""
        embedded = self._embedding(input_ids)
        if self._project_in is not None:
            embedded = self._project_in(embedded)
        if self._positions is not None:
            embedded = embedded + self._positions(positions)
        stream = ResidualStream(embedded)
        for layer in self._layers:
            layer(stream, positions, metadata)
        hidden = stream.read(self._final_norm)
        return hidden if self._project_out is None else self._project_out(hidden)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See CausalLM."""
        return self._lm_head(hidden)
