"""Normalisation layers; their sums are float32, whatever the model's dtype."""

from typing import Protocol

import torch

from worker_svc import ops
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup


class Norm(Protocol):
    """Normalises over the last dimension."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of x, [rows, size] or [rows, heads, size], memory of its own."""

    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Add x to the residual stream and return the norm of the sum.

        The bits are those of the addition and a call one after the other.

        Mutates: `residual`, which becomes the sum, and `x`, which may become the value returned.

        Args:
            x: [rows, size], other memory than residual.
            residual: [rows, size].
        """


class RMSNorm:
    """x / rms(x) * weight over the last dimension. Source: Zhang and Sennrich, 2019.

    Args:
        weights: scope of the norm.
        name: of the norm.
        size: of the last dimension.
        eps: added to the mean square.
    """

    def __init__(self, weights: Weights, name: str, size: int, eps: float) -> None:
        self._weight = weights.load(f"{name}.weight", (size,))
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See Norm."""
        out = torch.empty_like(x)
        ops.rms_norm(out, x, self._weight, self._eps)
        return out

    def norm_in_place(self, x: torch.Tensor) -> None:
        """Replace rows by their norms.

        Mutates: x.

        Args:
            x: [rows, size], any row stride.
        """
        ops.rms_norm(x, x, self._weight, self._eps)

    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """See Norm."""
        ops.fused_add_rms_norm(x, residual, self._weight, self._eps)
        return x


class AllHeadsRMSNorm:
    """The RMSNorm of all heads of a token together, those of other ranks too.

    Ranks send each other their heads: what they could add up by themselves would be in an order
    that depends on their number.

    Args:
        weights: scope of the norm.
        name: of the norm.
        total_heads: of all ranks.
        own: heads of this rank.
        head_dim: features of a head.
        eps: added to the mean square.
        parallel: the group.
    """

    def __init__(
        self,
        weights: Weights,
        name: str,
        total_heads: int,
        own: range,
        head_dim: int,
        eps: float,
        parallel: ParallelGroup,
    ) -> None:
        self._norm = RMSNorm(weights, name, total_heads * head_dim, eps)
        self._own = slice(own.start, own.stop)
        # Ranks that hold the same head.
        self._copies = parallel.size * len(own) // total_heads
        self._parallel = parallel

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [rows, heads of this rank, head_dim], memory of its own.

        Args:
            x: of the same shape.
        """
        rows, _, head_dim = x.shape
        joined = self._parallel.all_gather_columns(x.reshape(rows, -1))
        heads = joined.view(rows, -1, head_dim)[:, :: self._copies]
        normed = self._norm(heads.reshape(rows, -1))
        return normed.view(rows, -1, head_dim)[:, self._own]


class GemmaRMSNorm:
    """x / rms(x) * (1 + weight) over the last dimension, in float32 throughout.

    Args:
        weights: scope of the norm.
        name: of the norm.
        size: of the last dimension.
        eps: added to the mean square.
    """

    def __init__(self, weights: Weights, name: str, size: int, eps: float) -> None:
        self._weight = weights.load(f"{name}.weight", (size,)).float() + 1.0
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See Norm."""
        wide = x.float().contiguous()
        out = torch.empty_like(wide)
        ops.rms_norm(out, wide, self._weight, self._eps)
        return out.to(x.dtype)

    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """See Norm."""
        residual += x
        return self(residual)


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
        """See Norm."""
        out = torch.empty_like(x)
        ops.layer_norm(out, x, self._weight, self._bias, self._eps)
        return out

    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """See Norm."""
        residual += x
        ops.layer_norm(x, residual, self._weight, self._bias, self._eps)
        return x


class HeadsLayerNorm:
    """The LayerNorm of each head by itself, each with weights of its own and no bias.

    Args:
        weight: [heads of this rank, head_dim].
        eps: added to the variance.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight = weight.float()
        self._ones = torch.ones_like(self._weight[0])
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [rows, heads, head_dim], memory of its own.

        Args:
            x: of the same shape.
        """
        wide = x.float().contiguous()
        out = torch.empty_like(wide)
        ops.layer_norm(out, wide, self._ones, None, self._eps)
        return (out * self._weight).to(x.dtype)
