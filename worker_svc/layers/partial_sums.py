"""The products of row-parallel layers, as the partial sums that ranks add up.

Where tokens must not depend on the number of ranks (always on the CPU and in int8, with
`--invariant` on a GPU), the input features are cut into equal parts, whatever that number, and the
sums of the parts are added as neighbours in a binary tree: a rank owns a subtree, and the sums of
the ranks are the rest of it (see `parallel.tree_sum`).
"""

from functools import partial
from math import gcd

import torch

from quire.contract.errors import ModelLoadError
from worker_svc.layers.device_linear import Linear, is_invariance_wanted, make_linear
from worker_svc.layers.fixed_tiles import Parts
from worker_svc.layers.grouped_linear import GroupedWeight
from worker_svc.layers.quantization import has_defined_bits, part_step, shared_linear
from worker_svc.parallel.group import ParallelGroup, tree_sum

MAX_PARTS = 8
"""A power of two; the largest number of ranks that give the tokens of one."""


class PartialSums:
    """x W^T over this rank's input features.

    Args:
        name: of the layer, for errors.
        weight: [out_features, this rank's input features]; no integers with `apart`.
        parallel: the group.
        bias: [out_features], or None; not with `apart`.
        apart: whether the sum of each part is wanted, not their sum.

    Attributes:
        num_sums: that a call returns: of this rank's parts, or one.
        late_bias: to be added to the sum of all ranks; None if there is none, or it is in the sums.

    Raises:
        ModelLoadError: the ranks cannot share the parts.
    """

    def __init__(
        self,
        name: str,
        weight: torch.Tensor | GroupedWeight,
        parallel: ParallelGroup,
        bias: torch.Tensor | None = None,
        *,
        apart: bool = False,
    ) -> None:
        num_parts = own_parts(name, weight.shape[1] * parallel.size, parallel, weight.device)
        is_defined = has_defined_bits(weight.device)
        # A product that is the whole sum adds the bias itself: on a GPU that is one rounding less.
        is_whole = parallel.size == 1 and not apart
        self.late_bias = None if is_whole else bias
        own_bias = bias if is_whole else None
        # Rounded before the exchange, sums would depend on the number of ranks.
        is_exact = not is_whole and (is_defined or is_invariance_wanted())
        dtype = torch.float32 if is_exact else None
        self._linears: list[Linear]
        if is_defined and not apart:
            linear = shared_linear(weight, own_bias, num_parts)
            self._linears = [partial(linear, dtype=dtype) if is_exact else linear]
        elif apart:
            assert isinstance(weight, torch.Tensor), "experts are loaded as tensors"
            chunks = weight.chunk(num_parts, dim=1)
            self._linears = [
                partial(shared_linear(part, None), dtype=dtype)
                if is_defined
                else make_linear(part.contiguous(), None, is_shared=True, dtype=dtype)
                for part in chunks
            ]
        else:
            total = num_parts * parallel.size if is_invariance_wanted() else 1
            parts = Parts(num_parts, total)
            self._linears = [
                make_linear(weight, own_bias, is_shared=True, parts=parts, dtype=dtype)
            ]
        self.num_sums = len(self._linears)

    def __call__(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the sums, each [rows, out_features].

        Args:
            x: [rows, this rank's input features].
        """
        if self.num_sums == 1:
            return [self._linears[0](x)]
        parts = x.chunk(self.num_sums, dim=1)
        return [
            linear(part.contiguous()) for linear, part in zip(self._linears, parts, strict=True)
        ]


def add_up(
    sums: list[torch.Tensor],
    parallel: ParallelGroup,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the sum of all sums of all ranks, plus a bias.

    Sums of several parts are exchanged in float32: rounded before the exchange, they would depend
    on the number of ranks.

    Args:
        sums: of this rank, each [rows, features].
        parallel: the group.
        dtype: of the result.
        bias: [features], or None.
    """
    total = parallel.all_reduce(sums[0] if len(sums) == 1 else tree_sum(sums))
    return (total if bias is None else total + bias).to(dtype)


def own_parts(name: str, in_features: int, parallel: ParallelGroup, device: torch.device) -> int:
    """Return how many parts this rank has; docs/numerics.md explains how many there are in all.

    Args:
        name: of the layer, for errors.
        in_features: over all ranks.
        parallel: the group.
        device: of the layer.

    Raises:
        ModelLoadError: the ranks cannot share the parts.
    """
    if has_defined_bits(device):
        total = gcd(in_features // 2, MAX_PARTS) if in_features % 2 == 0 else 1
    elif is_invariance_wanted():
        total = gcd(in_features, MAX_PARTS)
    else:
        return 1
    while total > 1 and in_features // total % part_step() != 0:
        total //= 2
    if total % parallel.size != 0:
        raise ModelLoadError(
            f"tensor_parallel_size: must divide {total}, since the {in_features} input features of "
            f"{name} are added up in as many parts, got {parallel.size}"
        )
    return total // parallel.size
