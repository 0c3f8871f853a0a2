"""How attention and MLP of a layer stand around the residual stream."""

from dataclasses import dataclass

import torch

from worker_svc.layers.attention import AttentionMetadata
from worker_svc.layers.norm import LayerNorm
from worker_svc.layers.plain_mlp import PlainMLP
from worker_svc.layers.self_attention import SelfAttention


@dataclass(frozen=True, slots=True)
class SequentialLayer:
    """x + attention(norm(x)), then x + mlp(norm(x)) of that sum."""

    attention_norm: LayerNorm
    attention: SelfAttention
    mlp_norm: LayerNorm
    mlp: PlainMLP

    def __call__(
        self, residual: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return the residual stream [rows, hidden_size] after this layer."""
        normed = self.attention_norm(residual)
        residual = residual + self.attention(normed, positions, metadata)
        return residual + self.mlp(self.mlp_norm(residual))


@dataclass(frozen=True, slots=True)
class ParallelLayer:
    """x + attention(norm(x)) + mlp(norm(x)): both read the stream before the layer.

    Source: Wang and Komatsuzaki, 2021, GPT-J-6B.

    Attributes:
        attention_norm: of what attention reads.
        attention: of this layer.
        mlp_norm: of what the MLP reads; None where it reads what attention does.
        mlp: of this layer.
    """

    attention_norm: LayerNorm
    attention: SelfAttention
    mlp_norm: LayerNorm | None
    mlp: PlainMLP

    def __call__(
        self, residual: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return the residual stream [rows, hidden_size] after this layer."""
        normed = self.attention_norm(residual)
        attended = self.attention(normed, positions, metadata)
        if self.mlp_norm is not None:
            normed = self.mlp_norm(residual)
        return residual + (attended + self.mlp(normed))
