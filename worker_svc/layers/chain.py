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


def sum_of(*functions: TensorFunction) -> TensorFunction:
    """Return the function that adds up, in order, what each of `functions` returns of its input.

    What the first returns must be memory of its own.
    """
    first, *others = functions

    def apply(x: torch.Tensor) -> torch.Tensor:
        total = first(x)
        for function in others:
            total += function(x)
        return total

    return apply


def scaled_by(factor: float) -> TensorFunction:
    """Return the function that multiplies by a number, taken as float32, and rounds once."""
    return lambda x: x * factor
