"""What the runner asks of a model, and the loader of a model's configuration."""

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
        """Length a sequence may have when nobody sets a limit."""

    @property
    def max_context(self) -> int:
        """Longest limit that may be set."""


class CausalLM(Protocol):
    """A model that turns a flattened ragged batch into hidden states, and those into logits.

    Attributes:
        vocab_size: number of token ids.
        num_layers: number of key/value caches.
        heads: of every layer, and this rank's share of them.
        is_capturable: whether what it starts for a batch depends on the batch's shape alone, so
            that a CUDA graph can be made of it.
    """

    vocab_size: int
    num_layers: int
    heads: HeadShare
    is_capturable: bool

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return the last hidden states [rows, hidden_size]; writes the step's keys and values."""

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, vocab_size] float32 of the rows that sample."""
