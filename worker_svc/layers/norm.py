"""Normalisation layers; their weights stay in the model's dtype, their sums are float32."""

import torch

from worker_svc import ops
from worker_svc.loading.weights import Weights


class RMSNorm:
    """x / rms(x) * weight over the last dimension. Source: Zhang and Sennrich, 2019."""

    def __init__(self, weights: Weights, name: str, size: int, eps: float) -> None:
        self._weight = weights.load(f"{name}.weight", (size,))
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of each row of x, [rows, size]."""
        out = torch.empty_like(x)
        ops.rms_norm(out, x, self._weight, self._eps)
        return out

    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Add x to the residual stream and return the norm of the sum.

        Mutates: `residual` (the sum) and `x` (the value returned); both [rows, size].
        """
        ops.fused_add_rms_norm(x, residual, self._weight, self._eps)
        return x


class LayerNorm:
    """(x - mean) / std * weight + bias over the last dimension. Source: Ba et al., 2016.

    Args:
        weights: scope of the norm.
        name: of the norm.
        size: of the last dimension.
        eps: added to the variance.
        affine: whether there are a weight and a bias.
        bias: whether there is a bias beside the weight.
    """

    def __init__(
        self,
        weights: Weights,
        name: str,
        size: int,
        eps: float,
        affine: bool = True,
        *,
        bias: bool = True,
    ) -> None:
        self._bias: torch.Tensor | None = None
        if affine:
            self._weight = weights.load(f"{name}.weight", (size,))
            if bias:
                self._bias = weights.load(f"{name}.bias", (size,))
        else:
            self._weight = torch.ones(size, dtype=weights.dtype, device=weights.device)
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of each row of x, [rows, size]."""
        out = torch.empty_like(x)
        ops.layer_norm(out, x, self._weight, self._bias, self._eps)
        return out
