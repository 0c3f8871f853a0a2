"""The shape of the paged caches."""

from collections.abc import Callable

import torch

from worker_svc.cache.format import row_size
from worker_svc.layers.attention import KVCaches
from worker_svc.layers.linear import HeadShare


def empty_caches(
    num_layers: int,
    heads: HeadShare,
    dtype: torch.dtype,
    block_size: int,
    num_blocks: int,
    empty: Callable[..., torch.Tensor] = torch.empty,
) -> KVCaches:
    """Return uninitialised caches [blocks, kv_heads, block_size, row_size] of this rank's heads.

    Args:
        num_layers: number of caches.
        heads: heads of every layer.
        dtype: type of keys and values.
        block_size: tokens of a block.
        num_blocks: blocks of each layer.
        empty: makes a tensor of a shape and a dtype where the cache belongs.
    """
    shape = (num_blocks, heads.num_kv_heads, block_size, row_size(heads.head_dim, dtype))
    keys, values = ([empty(shape, dtype=dtype) for _ in range(num_layers)] for _ in range(2))
    return KVCaches(keys, values)
