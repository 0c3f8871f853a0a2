"""Dense layers on the CPU: weights packed once, products whose bits are defined.

docs/numerics.md has the definition. A row's bits depend on the row, the weights and the number of
parts alone: not on other rows, threads, ranks or the processor.
"""

import torch

from worker_svc import ops
from worker_svc.ops.layers import packed_shape


class PackedLinear:
    """x W^T + b.

    Args:
        weight: [out_features, in_features]; not kept.
        bias: [out_features], or None.
        num_parts: into which the input features are cut; 1, 2, 4 or 8.

    Attributes:
        in_features: length of a row.
        out_features: length of its product.
    """

    __slots__ = ("_bias", "_num_parts", "_packed", "in_features", "out_features")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, num_parts: int = 1) -> None:
        self.out_features, self.in_features = weight.shape
        self._num_parts = num_parts
        self._bias = None if bias is None else bias.float()
        shape = packed_shape(self.out_features, self.in_features)
        self._packed = torch.empty(shape, dtype=weight.dtype)
        ops.advise_huge_pages(self._packed)
        ops.pack_weight(self._packed, weight)

    def __call__(self, x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return [rows, out_features].

        Args:
            x: [rows, in_features], in the weight's dtype, unit stride along a row.
            dtype: of the result: float32, or that of x if None.
        """
        out = x.new_empty((x.shape[0], self.out_features), dtype=dtype or x.dtype)
        ops.packed_linear(out, x, self._packed, self._bias, self._num_parts)
        return out
