"""Linear layers where their weights are: oneDNN's on the CPU, cuBLAS's or our own on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
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


def are_invariant(device: torch.device) -> bool:
    """Whether layers that are built now for a device keep a row's bits in any company."""
    return device.type == "cpu" or _fixed_tiles.get()


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """Return the layer of a weight [out_features, in_features] and a bias [out_features].

    On a GPU cuBLAS picks its algorithm, and so a row's last bits, by the number of rows; layers of
    fixed tiles do not.
    """
    if weight.device.type == "cpu":
        return InvariantLinear(weight, bias)
    linear = fixed_tile_linear if _fixed_tiles.get() else functional.linear
    return partial(linear, weight=weight, bias=bias)


def fixed_tile_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return x W^T + b with the same bits for a row in any company; see ops.linear."""
    out = x.new_empty(x.shape[0], weight.shape[0])
    ops.linear(out, x, weight, bias)
    return out
