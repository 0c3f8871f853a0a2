"""Rotary position embedding: rotates pairs of features by an angle that grows with the position.

Source: Su et al., 2021, RoFormer.
"""

import torch

from worker_svc.layers.rope_scaling import RopeParameters, rope_frequencies


class RotaryEmbedding:
    """Angles of every position a sequence may reach, shared by all layers.

    Args:
        rope: how positions turn into angles.
        rotary_dim: the first features of a head, which are rotated; the others stay as they are.
        max_model_len: positions are in [0, max_model_len).
        device: where queries and keys will be.
        is_neox: a pair is feature i of the first half and i of the second; else two neighbours.

    Attributes:
        cos_sin_cache: [max_model_len, rotary_dim] float32, cosines, then sines.
        is_neox: as given.
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
        self.is_neox = is_neox
        angles = torch.outer(torch.arange(max_model_len, dtype=torch.float32), frequencies)
        # Rounded from float64: libraries differ in the last bits of float32 cosines.
        cos, sin = angles.double().cos().float(), angles.double().sin().float()
        self.cos_sin_cache = (torch.cat((cos, sin), dim=-1) * scale).to(device)
