"""Activation functions by their Hugging Face names."""

from collections.abc import Callable

import torch

from quire.contract.errors import ModelLoadError
from worker_svc import ops

Activation = Callable[[torch.Tensor], torch.Tensor]


def _same_shape(op: Callable[[torch.Tensor, torch.Tensor], None]) -> Activation:
    def apply(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        op(out, x)
        return out

    return apply


def _half_width(op: Callable[[torch.Tensor, torch.Tensor], None]) -> Activation:
    def apply(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(x.shape[0], x.shape[1] // 2)
        op(out, x)
        return out

    return apply


_PLAIN: dict[str, Activation] = {
    "relu": torch.relu,
    "gelu": _same_shape(ops.gelu),
    "gelu_new": _same_shape(ops.gelu_tanh),
    "gelu_fast": _same_shape(ops.gelu_tanh),
    "gelu_pytorch_tanh": _same_shape(ops.gelu_tanh),
    "quick_gelu": _same_shape(ops.quick_gelu),
}

_GATED: dict[str, Activation] = {
    "silu": _half_width(ops.silu_and_mul),
    "swish": _half_width(ops.silu_and_mul),
    "gelu": _half_width(ops.gelu_and_mul),
    "gelu_pytorch_tanh": _half_width(ops.gelu_tanh_and_mul),
}


def plain_activation(name: str) -> Activation:
    """Return the function [rows, n] -> [rows, n] of that name.

    Raises:
        ModelLoadError: not one of those served; the error lists them.
    """
    return _lookup(_PLAIN, name)


def gated_activation(name: str) -> Activation:
    """Return the function [rows, 2 n] -> [rows, n] that multiplies act(first half) by the second.

    Raises:
        ModelLoadError: not one of those served; the error lists them.
    """
    return _lookup(_GATED, name)


def _lookup(table: dict[str, Activation], name: str) -> Activation:
    if name not in table:
        raise ModelLoadError(f"activation: must be one of {', '.join(table)}, got {name!r}")
    return table[name]
