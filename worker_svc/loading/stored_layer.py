"""A dense layer as checkpoints of integers or float8 hold it, whatever their format."""

from dataclasses import dataclass

import torch

from quire.contract.errors import ModelLoadError
from worker_svc.layers.grouped_linear import GROUP_SIZES, GroupedWeight


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """What a format holds of a weight.

    Attributes:
        values: [N, K], integers or float8.
        scales: [N, groups] or [1, groups] float32.
        zeros: as scales; None for 0.
        group_of: [K], the group of each input feature; None for groups in order.
        group_size: input features of each group, where they are in order, but for the last, which
            may be shorter; None for one group of all.
        bits: of an integer; None of float8.
        least: the least integer of that many bits.
    """

    values: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    group_of: torch.Tensor | None = None
    group_size: int | None = None
    bits: int | None = None
    least: int = 0

    def dequantised(self, name: str) -> torch.Tensor:
        """Return [N, K] float32.

        Raises:
            ModelLoadError: shapes do not fit together; names the layer.
        """
        group_of = self._checked_groups(name)
        weight: torch.Tensor = self.values.float()
        if self.zeros is not None:
            weight = weight - self.zeros[:, group_of]
        return weight * self.scales[:, group_of]

    def grouped(self, name: str) -> GroupedWeight | None:
        """Return the same weights as integers or float8; None if layers cannot hold them so.

        Raises:
            ModelLoadError: see `dequantised`.
        """
        group_of, in_features = self._checked_groups(name), self.values.shape[1]
        size = self.group_size or in_features
        held = next((each for each in GROUP_SIZES if size % each == 0), None)
        if (
            held is None
            or size * self.scales.shape[1] != in_features
            or not torch.equal(group_of, torch.arange(in_features) // size)
        ):
            return None
        rows, smallest = len(self.values), torch.finfo(torch.float32).tiny
        repeated = self.scales.expand(rows, -1).repeat_interleave(size // held, dim=1)
        if self.bits is None:
            # Where no product is denormal: float8 goes down to 2^-9.
            is_small = (self.scales.abs() < smallest * 2**9) & (self.scales != 0)
            if is_small.any() or (self.zeros is not None and self.zeros.any()):
                return None
            none = torch.zeros_like(repeated, dtype=torch.int8)
            return GroupedWeight(self.values, repeated, none, 8)
        offset = (0 if self.bits == 4 else -128) - self.least
        zeros = torch.zeros_like(self.scales) if self.zeros is None else self.zeros
        zeros = (zeros + offset).int()
        if ((zeros < -128) | (zeros > 127)).any() or (self.scales.abs() < smallest).any():
            return None
        return GroupedWeight(
            (self.values + offset).to(torch.int8),
            repeated,
            zeros.to(torch.int8).expand(rows, -1).repeat_interleave(size // held, dim=1),
            self.bits,
        )

    def _checked_groups(self, name: str) -> torch.Tensor:
        """Return the group of each input feature."""
        (num_features, in_features), (rows, groups) = self.values.shape, self.scales.shape
        group_of = self.group_of
        if group_of is None:
            group_of = torch.arange(in_features) // (self.group_size or in_features)
        if (
            rows not in (1, num_features)
            or (self.group_of is None and groups != group_of[-1] + 1)
            or not bool(((group_of >= 0) & (group_of < groups)).all())
            or (self.zeros is not None and self.zeros.shape != self.scales.shape)
        ):
            raise ModelLoadError(
                f"{name}: scales {list(self.scales.shape)} and zeros "
                f"{None if self.zeros is None else list(self.zeros.shape)} do not fit a weight of "
                f"{list(self.values.shape)}"
            )
        return group_of
