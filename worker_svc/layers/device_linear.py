"""Linear layers where their weights are: our own on the CPU, cuBLAS's or our own on a GPU.

Whether `--invariant` was given is known here while layers are built.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as functional

from worker_svc.layers.fixed_tiles import WHOLE, Parts, fixed_tile_linear
from worker_svc.layers.grouped_linear import GroupedWeight
from worker_svc.layers.packed_linear import PackedLinear
from worker_svc.layers.quantization import (
    grouped_linear_of_device,
    has_defined_bits,
    is_quantised,
    shared_linear,
)

_invariant: ContextVar[bool] = ContextVar("layers are built for --invariant", default=False)


class Linear(Protocol):
    """From [rows, in_features] to [rows, out_features]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + b, [rows, out_features] in the dtype of x or that asked of make_linear.

        Args:
            x: [rows, in_features].
        """


@contextmanager
def invariance(wanted: bool) -> Iterator[None]:
    """Build layers in the block whose bits depend neither on the batch nor on the number of ranks.

    On the CPU they never do.
    """
    token = _invariant.set(wanted)
    try:
        yield
    finally:
        _invariant.reset(token)


def is_invariance_wanted() -> bool:
    """Return whether layers built now must give the same bits on any number of ranks."""
    return _invariant.get()


def are_rows_independent(device: torch.device) -> bool:
    """Return whether the rows of layers built now for a device do not depend on each other."""
    return device.type == "cpu" or _invariant.get()


def make_linear(
    weight: torch.Tensor | GroupedWeight,
    bias: torch.Tensor | None,
    total_features: int | None = None,
    *,
    is_shared: bool = False,
    parts: Parts = WHOLE,
    dtype: torch.dtype | None = None,
) -> Linear:
    """Return the layer of a weight [out_features, in_features] and a bias [out_features].

    On a GPU cuBLAS picks its algorithm, and so a row's last bits, by the number of rows; layers of
    fixed tiles do not.

    Args:
        weight: of this rank.
        bias: of this rank.
        total_features: out_features over all ranks; None where this rank has them all. By it
            layers on a GPU choose how to cut their sums, so that each rank of any number of ranks
            does alike.
        is_shared: whether it is one of the layers that `--quantization` is for.
        parts: that the input features are cut into, with `--invariant` on a GPU.
        dtype: of the result, float32 or that of x; None for that of x.
    """
    is_on_cpu = weight.device.type == "cpu"
    if is_shared and has_defined_bits(weight.device):
        shared = shared_linear(weight, bias)
        return shared if dtype is None else partial(shared, dtype=dtype)
    total_features = total_features or weight.shape[0]
    if isinstance(weight, GroupedWeight) or (is_shared and is_quantised() and not is_on_cpu):
        grouped = grouped_linear_of_device(weight, bias, total_features, parts.num_own)
        return partial(grouped, parts=parts, dtype=dtype)
    if is_on_cpu:
        packed = PackedLinear(weight, bias)
        return packed if dtype is None else partial(packed, dtype=dtype)
    # cuBLAS rounds to the type of x.
    if not _invariant.get() and dtype is None:
        return partial(functional.linear, weight=weight, bias=bias)
    return partial(
        fixed_tile_linear,
        weight=weight,
        bias=bias,
        total_features=total_features,
        parts=parts,
        dtype=dtype,
    )
