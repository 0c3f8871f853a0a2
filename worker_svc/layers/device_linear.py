"""Linear layers where their weights are: oneDNN's on the CPU, cuBLAS's or our own on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
import torch.nn.functional as functional

from worker_svc import ops
from worker_svc.layers.invariant_linear import InvariantLinear

_fixed_tiles: ContextVar[bool] = ContextVar("linear layers of fixed tiles", default=False)


class Linear(Protocol):
    """From [rows, in_features] to [rows, out_features]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + b, in the dtype of x."""


@contextmanager
def fixed_tiles(wanted: bool) -> Iterator[None]:
    """Build linear layers in the block that are invariant on a GPU, where cuBLAS is not."""
    token = _fixed_tiles.set(wanted)
    try:
        yield
    finally:
        _fixed_tiles.reset(token)


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """Return the layer of a weight [out_features, in_features] and a bias [out_features]."""
    if weight.device.type == "cpu":
        return InvariantLinear(weight, bias)
    return FixedTileLinear(weight, bias) if _fixed_tiles.get() else CublasLinear(weight, bias)


class CublasLinear:
    """The fastest layer: its algorithm, and so a row's last bits, depend on the number of rows.

    Args:
        weight: [out_features, in_features] on a GPU.
        bias: [out_features] or None.
    """

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [rows, out_features]."""
        return functional.linear(x, self._weight, self._bias)


class FixedTileLinear:
    """A layer whose rows have the same bits in any company.

    Args:
        weight: [out_features, in_features] on a GPU.
        bias: [out_features] or None.
    """

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [rows, out_features]."""
        out = x.new_empty(x.shape[0], self._weight.shape[0])
        ops.linear(out, x, self._weight, self._bias)
        return out
