"""y = x W^T + b, of which a row's bits do not depend on the other rows.

oneDNN picks its code by the number of rows M. Measured with torch 2.13 on Zen 4: a bf16 row has one
result for every M >= 2, an fp32 row one for every M that is a multiple of 4; smaller or odd M give
others for some shapes. So M is padded. On CPUs without instructions for bf16 that is not enough for
some shapes, which are multiplied in float32 (see `float32_products`). `worker_svc.invariance` finds
violations on the machine at hand.

Weights are packed once, as torch's own compiler does for inference: the same bits as the plain
call, at M = 1 about twice its speed. Where packing is not possible (no oneDNN, or fp16 on a CPU
without fp16 arithmetic) the plain call is used.
"""

import torch
import torch.nn.functional as functional


def padded_rows(num_rows: int, dtype: torch.dtype) -> int:
    """Return the number of rows to compute `num_rows` rows with.

    Beyond what invariance asks for, sizes are rounded in steps of at most an eighth, since oneDNN
    prepares code for every new M: about a millisecond each time.

    Args:
        num_rows: at least 1.
        dtype: of the rows.
    """
    if num_rows <= 2 and dtype != torch.float32:
        return 2
    step = max(4, (1 << num_rows.bit_length()) >> 4)
    return -(-num_rows // step) * step


class InvariantLinear:
    """A linear layer whose rows do not depend on each other.

    Args:
        weight: [out_features, in_features]; not kept when it could be packed.
        bias: [out_features] or None.

    Attributes:
        in_features: length of a row.
        out_features: length of its product.
        is_float32: whether rows of a shorter type are multiplied in float32.
    """

    __slots__ = ("_bias", "_is_packed", "_weight", "in_features", "is_float32", "out_features")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.is_float32 = False
        self._bias = bias
        self._weight, self._is_packed = _pack(weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [rows, out_features].

        Args:
            x: [rows, in_features], contiguous, in the weight's dtype, at least one row.
        """
        if self.is_float32:
            return self._multiply_padded(x.float()).to(x.dtype)
        return self._multiply_padded(x)

    def multiply_in_float32(self) -> None:
        """From now on convert rows to float32, multiply, and round once to their own type.

        The weights are kept in float32: twice the memory, but converting them for each product
        would move five times the bytes, and they could not be packed.
        """
        if self.is_float32:
            return
        weight = self._weight.to_dense() if self._is_packed else self._weight
        self._weight, self._is_packed = _pack(weight.float())
        self._bias = None if self._bias is None else self._bias.float()
        self.is_float32 = True

    def _multiply_padded(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        padded = padded_rows(rows, x.dtype)
        if padded != rows:
            # The model's batch is padded once, up front; only rows picked for the head come here.
            return self._multiply(functional.pad(x, (0, 0, 0, padded - rows)))[:rows]
        return self._multiply(x)

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        if self._is_packed:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._weight, self._bias, "none", [], ""
            )
            return product
        return functional.linear(x, self._weight, self._bias)


def _pack(weight: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Return the weight in oneDNN's own layout and True, or as it is and False."""
    try:
        return torch.ops.mkldnn._reorder_linear_weight(weight), True
    except (AttributeError, RuntimeError):
        return weight, False
