"""Products of `transformers`' own code, through layers whose rows do not depend on each other.

Linear layers are replaced. What a model multiplies by itself, as routers do, is caught where torch
is called: a product with a matrix on its right goes to a layer of ours. A step's rows of padding
are not multiplied.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from worker_svc.layers.device_linear import Linear, invariance, is_invariance_wanted, make_linear

_MULTIPLIED = (torch.float32, torch.bfloat16, torch.float16)
_CONVERSIONS = (torch.Tensor.float, torch.Tensor.to, torch.Tensor.type)
_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm)
# [padded, real] rows of the step.
_rows: ContextVar[tuple[int, int] | None] = ContextVar("rows of the step", default=None)


@contextmanager
def padded_rows(padded: int, real: int) -> Iterator[None]:
    """Compute a step of `real` rows, padded to `padded`, in the block."""
    token = _rows.set((padded, real))
    try:
        yield
    finally:
        _rows.reset(token)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let torch compute with one thread in the block, as our kernels need not.

    Where torch shares out elements among threads depends on how many rows there are, and the code
    for an element on whether it is among the last of a thread.
    """
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def num_real(shape: torch.Size) -> int:
    """Return how many of the rows of a tensor are no padding.

    Args:
        shape: [rows, features], or the same with a dimension of 1 before it.
    """
    count = shape[:-1].numel()
    padded, real = _rows.get() or (0, 0)
    return real if padded in shape[:-1] and count == padded else count


def multiply(linear: Linear, x: torch.Tensor, out_features: int) -> torch.Tensor:
    """Return the layer's [..., out_features]; zeros in rows of padding.

    Args:
        linear: of `out_features`.
        x: [..., in_features].
        out_features: of the layer.
    """
    real, rows = num_real(x.shape), x.reshape(-1, x.shape[-1])
    out = linear(rows[:real].contiguous())
    out = functional.pad(out, (0, 0, 0, len(rows) - real))
    return out.view(*x.shape[:-1], out_features)


class RowwiseLinear(nn.Module):
    """Takes the place of a linear layer of torch; its rows do not depend on each other."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._linear = make_linear(weight, bias)
        self.out_features, self.in_features = weight.shape
        # For code that reads its dtype; the packed layer has the numbers.
        self.weight = torch.empty(weight.shape, dtype=weight.dtype, device="meta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features].

        Args:
            x: [..., in_features].
        """
        return multiply(self._linear, x, self.out_features)


def replace_linears(model: nn.Module) -> None:
    """Replace all linear layers by invariant ones.

    Mutates: model.
    """
    from transformers.pytorch_utils import Conv1D

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, RowwiseLinear(child.weight, child.bias))
            elif isinstance(child, Conv1D):
                setattr(parent, name, RowwiseLinear(child.weight.t().contiguous(), child.bias))


def matrices_of(model: nn.Module) -> list[nn.Parameter]:
    """Return the matrices that the model multiplies by itself, outside of linear layers."""
    return [
        parameter
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.ndim > 1 and not parameter.is_meta
    ]


class RowwiseProducts(TorchFunctionMode):
    """While it is active, products with a matrix on their right are those of our layers.

    Layers of whole matrices are kept. Those of a part of one, as of an expert that does not go
    through the experts interface, are made for each product: kept, they would be as large again.

    Args:
        matrices: that the model multiplies.
    """

    def __init__(self, matrices: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self._is_invariant = is_invariance_wanted()
        self._kept = {matrix.data_ptr(): matrix for matrix in matrices}
        self._converted: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._layers: dict[tuple[Any, ...], Linear] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Return the result of a function of torch; see TorchFunctionMode."""
        kwargs = kwargs or {}
        if func in _CONVERSIONS and isinstance(args[0], nn.Parameter) and args[0].ndim > 1:
            return self._convert(args[0], func(*args, **kwargs))
        if func is functional.linear:
            return self._linear(*args, **kwargs)
        if func in _PRODUCTS and len(args) == 2 and not kwargs:
            x, matrix = args
            if x.ndim > 1 and matrix.ndim == 2:
                return self._linear(x, matrix.t())
        return func(*args, **kwargs)

    def _convert(self, matrix: nn.Parameter, converted: torch.Tensor) -> torch.Tensor:
        """Return a matrix in another type: the same tensor each time, so that its layer is kept."""
        if matrix.data_ptr() not in self._kept or converted.dtype == matrix.dtype:
            return converted
        found = self._converted.setdefault((matrix.data_ptr(), converted.dtype), converted)
        self._kept[found.data_ptr()] = nn.Parameter(found, False)
        return found

    def _linear(
        self,
        input: torch.Tensor,  # noqa: A002 (its name in torch)
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if weight.ndim != 2 or weight.dtype not in _MULTIPLIED or weight.dtype != input.dtype:
            return functional.linear(input, weight, bias)
        layer, is_kept = self._layer(weight, bias)
        if is_kept:
            return multiply(layer, input, weight.shape[0])
        # Rows of a part of a matrix are those of an expert: none of them are padding.
        rows = input.reshape(-1, input.shape[-1])
        return layer(rows).view(*input.shape[:-1], weight.shape[0])

    def _layer(self, weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[Linear, bool]:
        """Return the layer of a weight [out_features, in_features], and whether it is kept."""
        key = (weight.data_ptr(), weight.stride(), None if bias is None else bias.data_ptr())
        if key in self._layers:
            return self._layers[key], True
        with invariance(self._is_invariant):
            layer = make_linear(weight.contiguous(), bias)
        whole = self._kept.get(weight.data_ptr())
        is_kept = whole is not None and whole.numel() == weight.numel()
        if is_kept:
            self._layers[key] = layer
        return layer, is_kept
