"""The shape of the paged caches."""

import torch

from worker_svc.layers.attention import KVCaches
from worker_svc.layers.linear import HeadShare


def empty_caches(
    num_layers: int, heads: HeadShare, dtype: torch.dtype, block_size: int, num_blocks: int
) -> KVCaches:
    """Return caches of this rank's heads, whose contents mean nothing yet."""
    shape = (num_blocks, heads.num_kv_heads, block_size, heads.head_dim)
    keys, values = ([torch.empty(shape, dtype=dtype) for _ in range(num_layers)] for _ in range(2))
    return KVCaches(keys, values)
