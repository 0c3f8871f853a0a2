"""Functions of hidden states, one after the other."""

from collections.abc import Callable

import torch

TensorFunction = Callable[[torch.Tensor], torch.Tensor]


def chain(*functions: TensorFunction) -> TensorFunction:
    """Return the function that applies each of `functions` to what the one before it returned."""

    def apply(x: torch.Tensor) -> torch.Tensor:
        for function in functions:
            x = function(x)
        return x

    return apply


def scaled_by(factor: float) -> TensorFunction:
    """Return the function that multiplies by a number, taken as float32, and rounds once."""
    return lambda x: x * factor
