"""A linear layer of each head by itself: of a token's heads, each is multiplied by its own weight.

Source: DeepSeek-V2, 2024, section 2.1.2, where such layers stand before and behind attention over
latents.
"""

import torch

from worker_svc import ops
from worker_svc.layers.device_linear import is_invariance_wanted
from worker_svc.ops.layers import packed_shape


class HeadLinear:
    """x W^T of every head: on the CPU, and with `--invariant`, with the bits of a layer for each.

    Args:
        weight: [heads, out_features, in_features] of this rank; on the CPU not kept.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._is_on_cpu = weight.device.type == "cpu"
        self._has_fixed_tiles = is_invariance_wanted()
        self._weight = _packed(weight) if self._is_on_cpu else weight.contiguous()

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Return `out`, filled.

        Mutates: out.

        Args:
            x: [tokens, heads, in_features] in the weight's dtype, unit stride along the features.
            out: [tokens, heads, out_features], likewise, of other memory.
        """
        if self._is_on_cpu:
            ops.packed_head_linear(out, x, self._weight)
        elif self._has_fixed_tiles:
            ops.head_linear(out, x, self._weight)
        else:
            weight = self._weight.transpose(1, 2)
            torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))
        return out


def _packed(weight: torch.Tensor) -> torch.Tensor:
    """Return weights as `ops.packed_head_linear` reads them, [heads, *packed_shape]."""
    num_heads, out_features, in_features = weight.shape
    shape = num_heads, *packed_shape(out_features, in_features)
    packed = torch.empty(shape, dtype=weight.dtype)
    ops.advise_huge_pages(packed)
    for own, head in zip(packed, weight, strict=True):
        ops.pack_weight(own, head.contiguous())
    return packed
