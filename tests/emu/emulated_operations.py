"""Operations of torch that a GPU does otherwise than a CPU, played on the CPU."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

# Operations that make tensors and start nothing.
ALLOCATIONS = {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty"}


def of_a_gpu(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return what does on the CPU what a GPU does for an operation.

    Args:
        name: of the operation, as torch names it.
        operation: what torch does on a CPU.
    """
    if name in ALLOCATIONS:
        return partial(_allocate, operation)
    return _OTHERWISE.get(name, operation)


def _allocate(operation: Callable[..., torch.Tensor], *args: Any, **options: Any) -> torch.Tensor:
    """Return new memory, filled with what spreads if it is read before it is written."""
    memory = operation(*args, **options)
    return memory.fill_(torch.nan) if memory.is_floating_point() else memory


def _linear(rows: torch.Tensor, *weights: torch.Tensor | None) -> torch.Tensor:
    """Return a dense layer of rows; one that is not finite changes no other.

    Of bfloat16, torch on some CPUs reads beyond the end of a row, where the next one begins, and
    multiplies that by zeros: NaN if the next is a row of no sequence, which holds anything.
    """
    finite = rows.isfinite().all(dim=-1, keepdim=True)
    if finite.all():
        return torch.nn.functional.linear(rows, *weights)
    return torch.nn.functional.linear(rows.where(finite, 0), *weights).where(finite, torch.nan)


def _histogram(values: torch.Tensor, *range_: Any, **options: Any) -> torch.Tensor:
    """Return a histogram of integers, which torch has for a GPU alone."""
    return torch.histc(values.float(), *range_, **options).to(values.dtype)


_OTHERWISE: dict[str, Callable[..., torch.Tensor]] = {
    "aten::linear": _linear,
    "aten::histc": _histogram,
}
