"""How attention and MLP of a layer stand around the residual stream."""

import torch

from worker_svc.layers.attention import AttentionMetadata
from worker_svc.layers.norm import LayerNorm
from worker_svc.layers.plain_mlp import PlainMLP
from worker_svc.layers.self_attention import SelfAttention


class SequentialLayer:
    """x + attention(norm(x)), then x + mlp(norm(x)) of that sum."""

    def __init__(
        self,
        attention_norm: LayerNorm,
        attention: SelfAttention,
        mlp_norm: LayerNorm,
        mlp: PlainMLP,
    ) -> None:
        self._attention_norm = attention_norm
        self._attention = attention
        self._mlp_norm = mlp_norm
        self._mlp = mlp

    def __call__(
        self, residual: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return the residual stream [rows, hidden_size] after this layer."""
        normed = self._attention_norm(residual)
        residual = residual + self._attention(normed, positions, metadata)
        return residual + self._mlp(self._mlp_norm(residual))


class ParallelLayer:
    """x + attention(norm(x)) + mlp(norm(x)): both read the stream before the layer.

    Source: Wang and Komatsuzaki, 2021, GPT-J-6B.

    Args:
        attention_norm: of what attention reads.
        attention: of this layer.
        mlp_norm: of what the MLP reads; None where it reads what attention does.
        mlp: of this layer.
    """

    def __init__(
        self,
        attention_norm: LayerNorm,
        attention: SelfAttention,
        mlp_norm: LayerNorm | None,
        mlp: PlainMLP,
    ) -> None:
        self._attention_norm = attention_norm
        self._attention = attention
        self._mlp_norm = mlp_norm
        self._mlp = mlp

    def __call__(
        self, residual: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return the residual stream [rows, hidden_size] after this layer."""
        normed = self._attention_norm(residual)
        attended = self._attention(normed, positions, metadata)
        if self._mlp_norm is not None:
            normed = self._mlp_norm(residual)
        return residual + (attended + self._mlp(normed))
