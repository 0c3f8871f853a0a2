"""The tensor-parallel group as layers see it: this rank's part, and sums and joins over ranks.

With one rank every exchange returns its argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from quire.contract.errors import ModelLoadError


class Communicator(Protocol):
    """How ranks exchange tensors; all ranks call the same methods in the same order."""

    def all_gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return the part of each rank, in order of rank; all have one shape and dtype."""

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' tensors, added in the order that is fastest."""

    def sum_in_order(self, partial: torch.Tensor) -> torch.Tensor | None:
        """Return the `tree_sum` of the ranks' tensors in their dtype, if that is quick.

        None on all ranks if it is not, by shape and dtype.
        """

    def failure(self) -> torch.Tensor | None:
        """Return [1] int32 on the device: not 0 if what was exchanged before is not to be used.

        None if every exchange that fails raises an error.
        """

    def broadcast(self, values: torch.Tensor) -> None:
        """Overwrite `values` with those of rank 0.

        Mutates: `values`, on ranks above 0.
        """


class Alone:
    """The communicator of a group of one."""

    def all_gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return the part."""
        return [part]

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        return partial

    def sum_in_order(self, partial: torch.Tensor) -> torch.Tensor | None:
        """Return the tensor."""
        return partial

    def failure(self) -> torch.Tensor | None:
        """Return None."""
        return None

    def broadcast(self, values: torch.Tensor) -> None:
        """Leave the values as they are."""


@dataclass(frozen=True, slots=True)
class ParallelGroup:
    """One rank's view of its group.

    Attributes:
        rank: in [0, size).
        size: number of ranks that share each layer.
        communicator: exchanges tensors with the other ranks.
        adds_in_order: whether sums over ranks have a fixed order. If not, the last bits of a token
            may depend on the tokens computed with it.
    """

    rank: int = 0
    size: int = 1
    communicator: Communicator = field(default_factory=Alone)
    adds_in_order: bool = True

    def part(self, what: str, total: int) -> range:
        """Return the indices of `total` equal items that this rank owns.

        Raises:
            ModelLoadError: `total` cannot be divided by the number of ranks.
        """
        if total % self.size != 0:
            raise ModelLoadError(
                f"tensor_parallel_size: must divide {what} ({total}), got {self.size}"
            )
        share = total // self.size
        return range(self.rank * share, (self.rank + 1) * share)

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the sum over ranks, in the dtype of the summands.

        A sum in order is the `tree_sum` of the parts: the ring algorithm of a library adds in an
        order that depends on the place of a value in the buffer. Small sums on GPUs are in order in
        any case.

        Args:
            partial: [rows, features] this rank's summand.
        """
        if self.size == 1:
            return partial
        total = self.communicator.sum_in_order(partial)
        if total is not None:
            return total
        if not self.adds_in_order:
            return self.communicator.all_reduce(partial)
        return tree_sum(self.communicator.all_gather(partial)).to(partial.dtype)

    def all_gather_columns(self, part: torch.Tensor) -> torch.Tensor:
        """Return [rows, size * columns] from the [rows, columns] of all ranks, side by side."""
        if self.size == 1:
            return part
        return torch.cat(self.communicator.all_gather(part), dim=-1)

    def broadcast(self, values: torch.Tensor) -> torch.Tensor:
        """Return rank 0's `values` on every rank; all tensors have the same shape and dtype.

        Mutates: `values`, on ranks above 0.
        """
        if self.size > 1:
            self.communicator.broadcast(values)
        return values


def tree_sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of equally shaped tensors in float32, neighbours first.

    That is ((p0 + p1) + (p2 + p3)) + ...: the sum of the first half plus the sum of the second. A
    rank that holds half of 2^n parts can add them by itself, and the bits of the whole sum stay.
    """
    sums = [part.float() for part in parts]
    while len(sums) > 1:
        pairs = [left + right for left, right in zip(sums[::2], sums[1::2], strict=False)]
        sums = pairs + sums[2 * len(pairs) :]
    return sums[0]
