"""Caches as the first kernels had them, and by how much their arithmetic may be off."""

import torch
from torch import Tensor

from tests.kernels.oracle import SMALLEST_STEP, UNIT_ROUNDOFF
from tests.kernels.paged import NO_BLOCK, History

FLOAT32_NOISE = 2.0**-16
BLOCK_SIZES = (8, 16, 32)
HEAD_SIZES = (64, 80, 128)


def empty_caches(
    num_blocks: int, kv_heads: int, head_size: int, block_size: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return keys [B, Hkv, D / x, BS, x] and values [B, Hkv, D, BS] that are NaN."""
    x = 16 // dtype.itemsize
    shape = (num_blocks, kv_heads, head_size // x, block_size, x)
    return (
        torch.full(shape, torch.nan, dtype=dtype),
        torch.full((num_blocks, kv_heads, head_size, block_size), torch.nan, dtype=dtype),
    )


def put(caches: tuple[Tensor, Tensor], slot: int, key: Tensor, value: Tensor) -> None:
    """Write a token's key [Hkv, D] and value [Hkv, D]."""
    keys, values = caches
    block, offset = divmod(slot, keys.shape[3])
    keys[block, :, :, offset] = key.view(len(key), -1, keys.shape[4])
    values[block, :, :, offset] = value


def filled(
    histories: list[History], block_size: int
) -> tuple[tuple[Tensor, Tensor], Tensor, list[int]]:
    """Return caches, block tables, and the slot of each sequence's last token.

    Other slots hold NaN.
    """
    first = histories[0].key
    kv_heads, head_size = first.shape[1:]
    counts = [-(-len(history.key) // block_size) for history in histories]
    free = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(0)).tolist()
    caches = empty_caches(len(free), kv_heads, head_size, block_size, first.dtype)
    tables = torch.full((len(histories), max(counts)), NO_BLOCK, dtype=torch.int32)
    last = []
    for row, history in enumerate(histories):
        for token in range(len(history.key)):
            place, offset = divmod(token, block_size)
            if offset == 0:
                tables[row, place] = free.pop()
            slot = int(tables[row, place]) * block_size + offset
            put(caches, slot, history.key[token], history.value[token])
        last.append(slot)
    return caches, tables, last


def allowed_ulps(query: Tensor, key: Tensor, block_size: int, scale: float) -> Tensor:
    """Return the roundings that a result [1, H, D] may be off by, [1, H, 1].

    One of the result, and float32 arithmetic on the way. In 16-bit types a thread also adds up the
    products of one vector of a key in pairs, of 16 bytes shared out among the threads of a token:
    each product goes through at most as many roundings as the vector has pairs, so that by the
    triangle inequality a logit l is off by at most d = n u scale sum |q k|. A weight, which is
    exp(l) in proportion to the sum of all, is then off by a factor of exp(2 d) at most.

    Args:
        query: [H, D].
        key: [L, Hkv, D].
        block_size: tokens of a block.
        scale: of the dot products.
    """
    dtype = query.dtype
    unit = UNIT_ROUNDOFF[dtype]
    ulps = torch.full((1, len(query), 1), 1 + 4 * FLOAT32_NOISE / unit, dtype=torch.float64)
    if dtype is torch.float32:
        return ulps
    group = max(32 // block_size, 1)
    pairs = 16 // dtype.itemsize // group // 2
    keys = key.double().repeat_interleave(len(query) // key.shape[1], 1)
    magnitude = (query.double() * keys).abs().sum(-1).max(0).values
    # The sum of what a product may be off by, where it is too small for the type.
    least = query.shape[1] * SMALLEST_STEP[dtype]
    of_logit = scale * (pairs * unit / (1 - pairs * unit) * magnitude + least)
    return ulps + torch.expm1(2 * of_logit)[None, :, None] / unit
