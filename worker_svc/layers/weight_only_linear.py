"""Dense layers on a GPU over weights of 8 or 4 bits, dequantised where they are multiplied.

They have the bits of `ops.linear` of the dequantised weights, which docs/numerics.md defines.
"""

import torch
import torch.nn.functional as functional

from worker_svc import ops
from worker_svc.layers.fixed_tiles import WHOLE, Parts
from worker_svc.layers.grouped_linear import GroupedWeight

_TILE_FEATURES = 16
_STEP = 64


class WeightOnlyLinear:
    """x W^T + b, for x of 16 bits.

    Args:
        weight: not kept.
        bias: [out_features] in the dtype of x, or None.
        total_features: see ops.linear.
        num_parts: that the input features are cut into.

    Attributes:
        in_features: length of a row.
        out_features: length of its product.
    """

    __slots__ = (
        "_bias",
        "_bits",
        "_num_parts",
        "_packed",
        "_scales",
        "_total_features",
        "in_features",
        "out_features",
    )

    def __init__(
        self,
        weight: GroupedWeight,
        bias: torch.Tensor | None,
        total_features: int,
        num_parts: int,
    ) -> None:
        self.out_features, self.in_features = weight.integers.shape
        self._bits = weight.bits
        self._bias = bias
        self._total_features = total_features
        self._num_parts = num_parts
        self._packed, self._scales = pack_for_tensor_cores(weight, num_parts)

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        return self._packed.nbytes + self._scales.nbytes

    def __call__(
        self, x: torch.Tensor, parts: Parts = WHOLE, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return [rows, out_features].

        Args:
            x: [rows, in_features], contiguous.
            parts: that the input features are cut into, as many as in the constructor.
            dtype: of the result, float32 or that of x; None for that of x.
        """
        out = x.new_empty(x.shape[0], self.out_features, dtype=dtype or x.dtype)
        ops.weight_only_linear(
            *(out, x, self._packed, self._scales, self._bias, self._bits),
            *(self._total_features, self._num_parts, parts.total),
        )
        return out


def pack_for_tensor_cores(
    weight: GroupedWeight, num_parts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights and scales in the order in which `ops.weight_only_linear` reads them.

    Args:
        weight: of K input features.
        num_parts: that K is cut into.
    """
    num_features, in_features = weight.integers.shape
    rows = (0, -num_features % _TILE_FEATURES)
    part = in_features // num_parts
    # Integers of 8 bits have a sign, which the packed ones lack.
    offset = 128 if weight.bits == 8 and not weight.is_float else 0
    if weight.is_float:
        integers = weight.integers.view(torch.uint8)
    else:
        integers = (weight.integers.to(torch.int16) + offset).to(torch.uint8)
    parts = integers.view(num_features, num_parts, part)
    padded = functional.pad(parts, (0, -part % _STEP, 0, 0, *rows))
    # Tile, half of it, feature; step, half of it, block of 16, half of that, lane, element.
    places = padded.view(-1, 2, 8, padded.shape[1] * padded.shape[2] // _STEP, 2, 2, 2, 4, 2)
    lanes = places.permute(0, 3, 4, 2, 7, 5, 1, 6, 8)
    if weight.bits == 4:
        lanes = lanes[..., 0] | lanes[..., 1] << 4
    packed = lanes.reshape(len(places), places.shape[3], -1)
    zeros = weight.zeros.float() + float(2**23 + offset)
    groups = functional.pad(
        torch.stack([weight.flushed_scales, zeros], dim=-1), (0, 0, 0, 0, *rows)
    )
    groups = groups.view(-1, _TILE_FEATURES, *groups.shape[1:]).transpose(1, 2)
    return packed.view(weight.integers.dtype), groups.contiguous()
