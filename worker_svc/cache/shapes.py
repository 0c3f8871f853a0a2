"""The shape of the paged caches."""

from collections.abc import Callable

import torch

from worker_svc.cache.format import row_size
from worker_svc.layers.attention import KVCaches
from worker_svc.layers.linear import HeadShare


def token_bytes(heads: HeadShare, dtype: torch.dtype) -> int:
    """Return the bytes of a token in the cache of one layer, keys and values, of this rank."""
    row_bytes = row_size(heads.head_dim, dtype) * dtype.itemsize
    return _num_stored(heads) * heads.num_kv_heads * row_bytes


def empty_caches(
    num_layers: int,
    heads: HeadShare,
    dtype: torch.dtype,
    block_size: int,
    num_blocks: int,
    empty: Callable[..., torch.Tensor] = torch.empty,
) -> KVCaches:
    """Return uninitialised caches [blocks, kv_heads, block_size, row_size] of this rank's heads.

    Values that are the first elements of their keys are not stored again.

    Args:
        num_layers: number of caches.
        heads: heads of every layer.
        dtype: type of keys and values.
        block_size: tokens of a block.
        num_blocks: blocks of each layer.
        empty: makes a tensor of a shape and a dtype where the cache belongs.
    """
    shape = (num_blocks, heads.num_kv_heads, block_size, row_size(heads.head_dim, dtype))
    stored = [
        tuple(empty(shape, dtype=dtype) for _ in range(_num_stored(heads)))
        for _ in range(num_layers)
    ]
    return KVCaches(stored, heads.value_size)


def _num_stored(heads: HeadShare) -> int:
    """Return the tensors of a layer: of keys, and of values that are apart."""
    return 2 if heads.value_size is None else 1
