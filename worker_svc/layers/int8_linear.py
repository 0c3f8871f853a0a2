"""Dense layers of int8 weights and activations (W8A8), whose bits are defined.

docs/numerics.md has the definition. Sums of integers are exact, so a row's bits depend on the row,
the weights and the number of parts alone, as those of packed_linear.py do, and a GPU has the bits
of a CPU.
"""

import torch
import torch.nn.functional as functional

from worker_svc import ops

_SMALLEST_NORMAL = 2.0**-126
_FOUR = 4


class Int8Linear:
    """x W^T + b, with weights quantised here and rows of x as they come.

    Args:
        weight: [out_features, in_features]; not kept.
        bias: [out_features], or None.
        num_parts: into which the input features are cut, each with scales of its own; 1, 2, 4 or 8.

    Attributes:
        in_features: length of a row.
        out_features: length of its product.
    """

    __slots__ = ("_bias", "_num_parts", "_packed", "in_features", "out_features")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, num_parts: int = 1) -> None:
        self.out_features, self.in_features = weight.shape
        self._num_parts = num_parts
        self._bias = None if bias is None else bias.float()
        self._packed = pack_int8_weight(*quantise_weight(weight, num_parts))

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        return self._packed.nbytes

    def __call__(self, x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return [rows, out_features].

        Args:
            x: [rows, in_features], float32, bfloat16 or float16, unit stride along a row.
            dtype: of the result: float32, or that of x if None.
        """
        out = x.new_empty((x.shape[0], self.out_features), dtype=dtype or x.dtype)
        ops.int8_linear(out, x, self._packed, self._bias, self._num_parts)
        return out


def quantise_weight(weight: torch.Tensor, num_parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return integers [N, num_parts, K / num_parts] int8 and their scales [N, num_parts] float32.

    A scale is the largest magnitude / 127 of a feature and part, by the rules of int8 rows
    (docs/numerics.md): NaN if an element is not finite, zero if it is too small.

    Args:
        weight: [N, K].
        num_parts: divides K.
    """
    parts = weight.float().view(len(weight), num_parts, -1)
    parts = torch.where(parts.abs() < _SMALLEST_NORMAL, 0.0, parts)
    # A tensor: on a GPU torch divides by a number as it multiplies by its inverse.
    scales = parts.abs().amax(-1) / parts.new_full((), 127.0)
    scales = torch.where(scales < _SMALLEST_NORMAL, 0.0, scales)
    scales = torch.where(scales.isfinite(), scales, torch.nan)
    inverses = torch.where(scales > 0, 1 / scales, 0.0).unsqueeze(-1)
    return (parts.nan_to_num() * inverses).round().to(torch.int8), scales


def pack_int8_weight(integers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return weights in the order in which `ops.int8_linear` reads them; see there.

    Args:
        integers: [N, P, L] int8, the parts of K one by one.
        scales: [N, P] float32.
    """
    num_features, num_parts, length = integers.shape
    num_panels = -(-num_features // ops.PANEL_FEATURES)
    rows = num_panels * ops.PANEL_FEATURES - num_features
    # 128 more, without a sign, in 8 bits.
    fours = functional.pad(integers ^ -128, (0, -length % _FOUR, 0, 0, 0, rows))
    fours = fours.view(num_panels, ops.PANEL_FEATURES, num_parts, -1, _FOUR)
    line = ops.PANEL_FEATURES * _FOUR
    fours = fours.permute(0, 2, 3, 1, 4).reshape(num_panels, num_parts, -1, line)
    tails = functional.pad(scales, (0, 0, 0, rows)).view(num_panels, ops.PANEL_FEATURES, num_parts)
    tails = tails.transpose(1, 2).contiguous().view(torch.int8).unsqueeze(2)
    lines = num_parts * (fours.shape[2] + 1)
    packed = fours.new_empty(num_panels, lines, line)
    ops.advise_huge_pages(packed)
    torch.cat([fours, tails], dim=2, out=packed.view(num_panels, num_parts, -1, line))
    return packed
