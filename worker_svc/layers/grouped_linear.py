"""Dense layers on the CPU over weights of 8 or 4 bits, whose bits are defined.

A weight is (integer - zero) * scale in float32, rounded to the type of the activations; from there
on the layer is that of packed_linear.py. docs/numerics.md has both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Self

import torch
import torch.nn.functional as functional

from quire.contract.errors import ModelLoadError
from worker_svc import ops

GROUP_SIZES = (128, 64, 32)


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """Weights [N, K] as integers; each feature has a scale and a zero for each group of K.

    Attributes:
        integers: [N, K] int8; of 4 bits in [0, 15]. Or float8_e4m3fn, which the CPU's kernels do
            not take.
        scales: [N, K / group size] float32.
        zeros: [N, K / group size] int8, the integers that mean 0; 0 of float8.
        bits: 8 or 4.
        dtype: of the activations, to which a weight is rounded.
    """

    integers: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    bits: int
    dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        return self.integers.shape

    @property
    def is_float(self) -> bool:
        """Whether they are float8."""
        return self.integers.dtype.is_floating_point

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.integers.device

    @property
    def nbytes(self) -> int:
        """Memory as it is held here, before it is packed."""
        return self.integers.nbytes + self.scales.nbytes + self.zeros.nbytes

    @property
    def group_size(self) -> int:
        """Elements of K with the same scale."""
        return self.integers.shape[1] // self.scales.shape[1]

    @property
    def flushed_scales(self) -> torch.Tensor:
        """The scales, 0 where they are denormal, as the CPU's kernels take them."""
        is_denormal = self.scales.abs() < torch.finfo(torch.float32).tiny
        return torch.where(is_denormal, 0.0, self.scales)

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """Return it on a device, for activations of a type."""
        return type(self)(
            self.integers.to(device),
            self.scales.to(device),
            self.zeros.to(device),
            self.bits,
            dtype,
        )

    def part(self, rows: range, columns: range) -> Self:
        """Return some features, and elements of K that begin and end with groups of 32."""
        sizes = (self.group_size, columns.start, len(columns))
        own = self.regrouped(next(size for size in GROUP_SIZES if gcd(*sizes) % size == 0))
        features, elements = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
        groups = slice(columns.start // own.group_size, columns.stop // own.group_size)
        return type(self)(
            own.integers[features, elements].contiguous(),
            own.scales[features, groups],
            own.zeros[features, groups],
            self.bits,
            self.dtype,
        )

    def regrouped(self, size: int) -> Self:
        """Return it with groups of a size that divides that which it has."""
        count = self.group_size // size
        scales, zeros = (each.repeat_interleave(count, dim=1) for each in (self.scales, self.zeros))
        return type(self)(self.integers, scales, zeros, self.bits, self.dtype)

    @classmethod
    def stacked(cls, weights: Sequence[Self]) -> Self:
        """Return weights of the same bits and K as one, in order."""
        size = min(weight.group_size for weight in weights)
        parts = [weight.regrouped(size) for weight in weights]
        return cls(
            torch.cat([part.integers for part in parts]),
            torch.cat([part.scales for part in parts]),
            torch.cat([part.zeros for part in parts]),
            weights[0].bits,
            weights[0].dtype,
        )

    def dequantised(self) -> torch.Tensor:
        """Return [N, K] float32."""
        parts = self.integers.view(*self.scales.shape, -1).float() - self.zeros.unsqueeze(-1)
        return (parts * self.scales.unsqueeze(-1)).view(self.integers.shape)

    @classmethod
    def of(cls, weight: torch.Tensor, bits: int, group_size: int) -> Self:
        """Quantise a weight [N, K], round to nearest.

        Of 8 bits a scale is the largest magnitude / 127 and the zero 0; of 4 bits a scale is the
        range, with 0 in it, / 15.
        """
        groups = weight.float().view(len(weight), -1, group_size)
        if bits == 8:
            low, steps = -groups.abs().amax(-1), 127
            width = -low
        else:
            low, steps = groups.amin(-1).clamp(max=0), 15
            width = groups.amax(-1).clamp(min=0) - low
        # By a tensor: on a GPU torch divides by a number as it multiplies by its inverse.
        scales = width / width.new_full((), float(steps))
        scales = torch.where(scales < torch.finfo(torch.float32).tiny, 1.0, scales)
        zeros = torch.zeros_like(low) if bits == 8 else (-low / scales).round()
        integers = (groups / scales.unsqueeze(-1)).round() + zeros.unsqueeze(-1)
        integers = integers.clamp(-127 if bits == 8 else 0, steps)
        return cls(
            integers.view(weight.shape).to(torch.int8),
            scales,
            zeros.to(torch.int8),
            bits,
            weight.dtype,
        )


class GroupedLinear:
    """x W^T + b.

    Args:
        weight: not kept.
        bias: [out_features], or None.
        num_parts: into which the input features are cut; 1, 2, 4 or 8.
        dtype: of rows of x.

    Attributes:
        in_features: length of a row.
        out_features: length of its product.
    """

    __slots__ = ("_bias", "_bits", "_num_parts", "_packed", "in_features", "out_features")

    def __init__(
        self,
        weight: GroupedWeight,
        bias: torch.Tensor | None,
        num_parts: int,
        dtype: torch.dtype,
    ) -> None:
        self.out_features, self.in_features = weight.integers.shape
        self._num_parts = num_parts
        self._bits = weight.bits
        self._bias = None if bias is None else bias.float()
        self._packed = pack_grouped_weight(weight, dtype)

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        return self._packed.nbytes

    def __call__(self, x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return [rows, out_features].

        Args:
            x: [rows, in_features], in the dtype of the layer, unit stride along a row.
            dtype: of the result: float32, or that of x if None.
        """
        out = x.new_empty((x.shape[0], self.out_features), dtype=dtype or x.dtype)
        ops.grouped_linear(out, x, self._packed, self._bias, self._num_parts, self._bits)
        return out


def group_size_of(in_features: int) -> int:
    """Return the largest size of groups that divides a part of K.

    Raises:
        ModelLoadError: none does.
    """
    for size in GROUP_SIZES:
        if in_features % size == 0:
            return size
    raise ModelLoadError(
        f"quantization: weights of 8 and 4 bits lie in groups of {GROUP_SIZES[-1]} or more, "
        f"which must divide the input features, got {in_features}"
    )


def pack_grouped_weight(weight: GroupedWeight, dtype: torch.dtype) -> torch.Tensor:
    """Return weights in the order in which `ops.grouped_linear` reads them; see there.

    Args:
        weight: of K input features.
        dtype: of the activations.
    """
    panel = ops.PANEL_FEATURES
    num_features, in_features = weight.integers.shape
    num_groups = weight.scales.shape[1]
    rows = (0, -num_features % panel)
    pairs = functional.pad(weight.integers, (0, 0, *rows)).view(-1, panel, in_features // 2, 2)
    # As in panels of weights of that type.
    order = (0, 2, 1, 3) if dtype == torch.bfloat16 else (0, 2, 3, 1)
    pairs = pairs.permute(order).reshape(len(pairs), -1, 2 * panel)
    if weight.bits == 4:
        pairs = pairs[..., :panel] | pairs[..., panel:] << 4
    tails = [
        functional.pad(each, (0, 0, *rows)).view(-1, panel, num_groups).transpose(1, 2).contiguous()
        for each in (weight.scales, weight.zeros)
    ]
    parts = [pairs.reshape(len(pairs), num_groups, -1), *(each.view(torch.int8) for each in tails)]
    packed = torch.empty(
        len(pairs), num_groups, sum(each.shape[2] for each in parts), dtype=torch.int8
    )
    ops.advise_huge_pages(packed)
    return torch.cat(parts, dim=2, out=packed)
