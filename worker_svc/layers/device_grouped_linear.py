"""Dense layers on a GPU over weights of 8 or 4 bits, with the bits of `ops.linear`, in float32.

Tensor cores do not multiply float32; other types are multiplied by weight_only_linear.py. Here
weights become float32 a few features at a time, so that no layer is ever held whole; `ops.linear`
multiplies them. Its sums do not depend on how features are shared out.
"""

import torch

from worker_svc import ops
from worker_svc.layers.fixed_tiles import WHOLE, Parts
from worker_svc.layers.grouped_linear import GroupedWeight

# Elements that are dequantised at once, and the features of its largest tile.
_MAX_ELEMENTS = 8 << 20
_TILE_FEATURES = 128


class DeviceGroupedLinear:
    """x W^T + b.

    Args:
        weight: not kept if of 4 bits.
        bias: [out_features] in the dtype of x, or None.
        total_features: see ops.linear.
        dtype: of rows of x.

    Attributes:
        in_features: length of a row.
        out_features: length of its product.
    """

    __slots__ = (
        "_bias",
        "_bits",
        "_dtype",
        "_integers",
        "_scales",
        "_total_features",
        "_zeros",
        "in_features",
        "out_features",
    )

    def __init__(
        self,
        weight: GroupedWeight,
        bias: torch.Tensor | None,
        total_features: int,
        dtype: torch.dtype,
    ) -> None:
        self.out_features, self.in_features = weight.integers.shape
        self._total_features = total_features
        self._bits = weight.bits
        self._dtype = dtype
        self._bias = bias
        self._integers = weight.integers
        if weight.bits == 4:
            # The first half of a row lies in the lower halves of bytes.
            low, high = weight.integers.view(torch.uint8).chunk(2, dim=1)
            self._integers = low | high << 4
        self._scales = weight.flushed_scales
        # Differences of two integers of 8 bits have 9.
        self._zeros = weight.zeros.to(torch.int16)

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        return self._integers.nbytes + self._scales.nbytes + self._zeros.nbytes

    def __call__(
        self, x: torch.Tensor, parts: Parts = WHOLE, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return [rows, out_features].

        Args:
            x: [rows, in_features], in the dtype of the layer, unit stride along a row.
            parts: that the input features are cut into.
            dtype: of the result, float32 or that of x; None for that of x.
        """
        out = x.new_empty(x.shape[0], self.out_features, dtype=dtype or x.dtype)
        step = max(_TILE_FEATURES, _MAX_ELEMENTS // self.in_features)
        step -= step % _TILE_FEATURES
        for first in range(0, self.out_features, step):
            features = slice(first, first + step)
            bias = None if self._bias is None else self._bias[features]
            weight = self._dequantised(features)
            ops.linear(
                *(out[:, features], x, weight, bias),
                *(self._total_features, parts.num_own, parts.total),
            )
        return out

    def _dequantised(self, features: slice) -> torch.Tensor:
        """Return weights [features, in_features] in the dtype of the layer."""
        integers = self._integers[features]
        if self._bits == 4:
            integers = torch.cat([integers & 0xF, integers >> 4], dim=1)
        elif integers.dtype.is_floating_point:
            integers = integers.float()
        scales, zeros = self._scales[features], self._zeros[features]
        groups = integers.view(*scales.shape, -1) - zeros.unsqueeze(-1)
        return (groups * scales.unsqueeze(-1)).to(self._dtype).view(len(scales), -1)
