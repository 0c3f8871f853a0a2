"""What the runner needs of a model, and the loader of a model's configuration."""

from typing import Protocol

import torch

from worker_svc.layers.attention import AttentionMetadata
from worker_svc.layers.linear import HeadShare


class ModelConfig(Protocol):
    """What the loader needs to know before it builds a model."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def max_position_embeddings(self) -> int:
        """Default length limit of a sequence, in tokens."""

    @property
    def max_context(self) -> int:
        """Longest limit that may be set, in tokens."""

    @property
    def num_layers(self) -> int:
        """Number of key/value caches."""

    @property
    def value_size(self) -> int | None:
        """Elements of a value where values are the first of their keys; None where they are apart.

        Such keys are cached in the model's type.
        """


class CausalLM(Protocol):
    """A model that turns a flattened ragged batch into hidden states, and those into logits.

    Attributes:
        vocab_size: number of token ids.
        hidden_size: features that the head reads.
        num_layers: number of key/value caches.
        heads: of every layer, and this rank's share of them.
        is_capturable: whether the kernels it starts depend on the batch's shape alone, so that a
            CUDA graph can replay them.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    heads: HeadShare
    is_capturable: bool

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return the last hidden states, [rows, hidden_size], behind the final norm.

        Mutates: the caches of `metadata`.

        Args:
            input_ids: [rows] int64.
            positions: [rows] int64.
            metadata: of the step.
        """

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [rows, vocab_size] float32.

        Args:
            hidden: of the rows that sample, as `forward` returns them.
        """
