"""Rotary position embedding: rotates pairs of features by an angle that grows with the position.

Source: Su et al., 2021, RoFormer.
"""

import torch

from worker_svc import ops
from worker_svc.layers.rope_scaling import RopeParameters, rope_frequencies


class RotaryEmbedding:
    """Angles of every position a sequence may reach, shared by all layers.

    Args:
        rope: how positions turn into angles.
        head_dim: features of a head; all of them are rotated, in halves (NeoX style).
        max_model_len: positions are in [0, max_model_len).
    """

    def __init__(self, rope: RopeParameters, head_dim: int, max_model_len: int) -> None:
        frequencies, scale = rope_frequencies(rope, head_dim, max_model_len)
        angles = torch.outer(torch.arange(max_model_len, dtype=torch.float32), frequencies)
        # [max_model_len, head_dim] float32: cosines, then sines.
        self._cos_sin_cache = torch.cat((angles.cos(), angles.sin()), dim=-1) * scale

    def __call__(self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> None:
        """Rotate query [tokens, heads, head_dim] and key [tokens, kv_heads, head_dim].

        Mutates: `query` and `key`.

        Args:
            positions: [tokens] int64.
            query: any token stride.
            key: any token stride.
        """
        ops.rotary_embedding(positions, query, key, self._cos_sin_cache, True)
