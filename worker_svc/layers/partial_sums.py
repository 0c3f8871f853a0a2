"""The products of row-parallel layers, as the partial sums that ranks add up.

With `--invariant`, tokens do not depend on the number of ranks. So the input features are cut into
equal parts, whatever that number, and their products are added as neighbours in a binary tree: a
rank owns a subtree, and the sums of the ranks are the rest of it (see `parallel.tree_sum`).
"""

from math import gcd

import torch

from quire.contract.errors import ModelLoadError
from worker_svc.layers.device_linear import is_invariance_wanted, make_linear
from worker_svc.parallel.group import ParallelGroup, tree_sum

MAX_PARTS = 8
"""A power of two; the largest number of ranks that give the tokens of one."""


class PartialSums:
    """x W^T over this rank's input features, part by part.

    Args:
        name: of the layer, for errors.
        weight: [out_features, this rank's input features].
        parallel: the group.
        bias: [out_features] if there is one part in all, else None.

    Attributes:
        num_parts: of this rank; 1 unless invariance is wanted.

    Raises:
        ModelLoadError: invariance is wanted of more ranks than there are parts.
    """

    def __init__(
        self,
        name: str,
        weight: torch.Tensor,
        parallel: ParallelGroup,
        bias: torch.Tensor | None = None,
    ) -> None:
        self.num_parts = _num_parts(name, weight.shape[1] * parallel.size, parallel)
        self._linears = [
            make_linear(part.contiguous(), bias) for part in weight.chunk(self.num_parts, dim=1)
        ]

    def __call__(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return [rows, out_features] of each part.

        Args:
            x: [rows, this rank's input features].
        """
        if self.num_parts == 1:
            return [self._linears[0](x)]
        parts = x.chunk(self.num_parts, dim=1)
        return [
            linear(part.contiguous()) for linear, part in zip(self._linears, parts, strict=True)
        ]


def add_up(parts: list[torch.Tensor], parallel: ParallelGroup, dtype: torch.dtype) -> torch.Tensor:
    """Return the sum of all parts of all ranks.

    Sums of several parts are exchanged in float32: rounded before the exchange, they would depend
    on the number of ranks.

    Args:
        parts: of this rank, each [rows, features].
        parallel: the group.
        dtype: of the sum.
    """
    own = parts[0] if len(parts) == 1 else tree_sum(parts)
    return parallel.all_reduce(own).to(dtype)


def _num_parts(name: str, in_features: int, parallel: ParallelGroup) -> int:
    if not is_invariance_wanted():
        return 1
    total = gcd(in_features, MAX_PARTS)
    if total % parallel.size != 0:
        raise ModelLoadError(
            f"tensor_parallel_size: must divide {total} with invariant, since the {in_features} "
            f"input features of {name} are added up in as many parts, got {parallel.size}"
        )
    return total // parallel.size
