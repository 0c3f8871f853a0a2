"""Self-attention of a layer, put together from the parts a family has."""

import torch

from worker_svc.layers.attention import AttentionMetadata, PagedAttention
from worker_svc.layers.chain import TensorFunction
from worker_svc.layers.linear import QKVParallelLinear
from worker_svc.layers.rotary import RotaryEmbedding


class SelfAttention:
    """Projects to heads, attends, and projects back.

    Args:
        qkv: from hidden states to query, key and value.
        attention: over the layer's cache.
        out: from heads to hidden states, memory of its own.
        rotary: rotates query and key by their position; None where they are left as they are.
        qk_norms: of query and of key, both [rows, heads, head_dim], before they are rotated; None
            for none.
    """

    def __init__(
        self,
        qkv: QKVParallelLinear,
        attention: PagedAttention,
        out: TensorFunction,
        *,
        rotary: RotaryEmbedding | None = None,
        qk_norms: tuple[TensorFunction, TensorFunction] | None = None,
    ) -> None:
        self._qkv = qkv
        self._attention = attention
        self._out = out
        self._rotary = rotary
        self._qk_norms = qk_norms

    def __call__(
        self, hidden: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Return [rows, hidden_size].

        Mutates: the layer's cache.

        Args:
            hidden: [rows, hidden_size].
            positions: [rows] int64.
            metadata: of the step.
        """
        query, key, value = self._qkv.split_heads(hidden)
        if self._qk_norms is not None:
            query_norm, key_norm = self._qk_norms
            query, key = query_norm(query), key_norm(key)
        if self._rotary is None:
            heads = self._attention(query, key, value, metadata)
        else:
            heads = self._attention.rotated(self._rotary, positions, query, key, value, metadata)
        return self._out(heads)
