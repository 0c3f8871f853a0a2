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
        rotary_dim: the first features of a head, which are rotated; the others stay as they are.
        max_model_len: positions are in [0, max_model_len).
        device: where queries and keys will be.
        is_neox: a pair is feature i of the first half and i of the second; else two neighbours.
    """

    def __init__(
        self,
        rope: RopeParameters,
        rotary_dim: int,
        max_model_len: int,
        device: torch.device,
        *,
        is_neox: bool = True,
    ) -> None:
        frequencies, scale = rope_frequencies(rope, rotary_dim, max_model_len)
        self._is_neox = is_neox
        angles = torch.outer(torch.arange(max_model_len, dtype=torch.float32), frequencies)
        # [max_model_len, rotary_dim] float32: cosines, then sines.
        self._cos_sin_cache = (torch.cat((angles.cos(), angles.sin()), dim=-1) * scale).to(device)

    def rotate_and_cache(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Rotate queries in place and write rotated keys, and values, into their cache slots.

        Mutates: `query`, `key_cache` and `value_cache`.

        Args:
            positions: [rows] int64.
            query: [rows, heads, head_dim], any token stride.
            key: [rows, kv_heads, head_dim], any token stride.
            value: as key.
            key_cache: [num_blocks, kv_heads, block_size, head_dim].
            value_cache: as key_cache.
            slot_mapping: [num_tokens] int64, of the first rows; the others are padding.
        """
        ops.rotary_and_cache(
            positions,
            query,
            key,
            value,
            self._cos_sin_cache,
            self._is_neox,
            key_cache,
            value_cache,
            slot_mapping,
        )
