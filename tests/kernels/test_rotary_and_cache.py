"""Rotary embedding on the way into the cache: the bits of the two operations in turn."""

import pytest
import torch
from torch import Tensor

from tests.kernels.oracle import DTYPES
from worker_svc import ops

HEADS, KV_HEADS, BLOCK_SIZE, NUM_BLOCKS, NUM_ROWS = 5, 2, 8, 6, 9


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rotate_and_cache_in_turn(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos_sin_cache: Tensor,
    is_neox: bool,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    """What rotary_and_cache does, by two operations; `key` is rotated too."""
    ops.rotary_embedding(positions, query, key, cos_sin_cache, is_neox)
    num_tokens = len(slot_mapping)
    ops.reshape_and_cache(
        key[:num_tokens], value[:num_tokens], key_cache, value_cache, slot_mapping
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("token_first", [True, False])
@pytest.mark.parametrize(
    ("head_size", "rotary_size"), [(8, 8), (24, 24), (64, 16), (80, 32), (128, 128), (40, 0)]
)
def test_is_both_in_turn(
    isa: str,
    dtype: torch.dtype,
    head_size: int,
    rotary_size: int,
    is_neox: bool,
    token_first: bool,
) -> None:
    # As views of one projection, so that rows are strided.
    qkv = random(NUM_ROWS, HEADS + 2 * KV_HEADS, head_size, seed=0).to(dtype)
    qkv[0, HEADS:, -1] = torch.nan
    shape = (NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, head_size)
    if token_first:
        shape = (NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, head_size)
    angles = 6 * random(50, rotary_size // 2, seed=1)
    cos_sin_cache = torch.cat([angles.cos(), angles.sin()], 1)
    positions = torch.tensor([0, 3, 49, 7, 7, 1, 20, 48, 30])
    # A row of padding among the tokens, and one after them.
    slots = torch.tensor([13, 0, 47, -1, 8, 9, 10, 40])

    results = []
    for operation in (ops.rotary_and_cache, rotate_and_cache_in_turn):
        own = qkv.clone()
        query, key, value = own[:, :HEADS], own[:, HEADS:-KV_HEADS], own[:, -KV_HEADS:]
        caches = [random(*shape, seed=2 + i).to(dtype) for i in range(2)]
        if token_first:
            caches = [cache.transpose(1, 2) for cache in caches]
        operation(positions, query, key, value, cos_sin_cache, is_neox, caches[0], caches[1], slots)
        results.append((query, *caches))
        if operation is ops.rotary_and_cache:
            assert bits_equal(key, qkv[:, HEADS : HEADS + KV_HEADS])
        assert bits_equal(value, qkv[:, HEADS + KV_HEADS :])
    for fused, in_turn in zip(*results, strict=True):
        assert bits_equal(fused, in_turn)


def bits_equal(a: Tensor, b: Tensor) -> bool:
    """Whether tensors are the same, NaN included."""
    integers = torch.int32 if a.element_size() == 4 else torch.int16
    return torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))


def test_rows_do_not_depend_on_the_batch(isa: str) -> None:
    """A token alone, and in the middle of many."""
    num_rows, head_size = 200, 64
    query, key, value = (
        random(num_rows, heads, head_size, seed=heads).bfloat16() for heads in (8, 2, 3)
    )
    value = value[:, :2]
    cos_sin_cache = random(300, head_size, seed=3)
    positions = torch.arange(num_rows) + 70

    def run(rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        caches = [torch.zeros(num_rows // 8, 2, 8, head_size).bfloat16() for _ in range(2)]
        slots = torch.arange(num_rows)[rows].flip(0).contiguous()
        own_query = query[rows].clone()
        ops.rotary_and_cache(
            positions[rows], own_query, key[rows], value[rows], cos_sin_cache, True, *caches, slots
        )
        back = [torch.empty(len(slots), 2, head_size).bfloat16() for _ in range(2)]
        ops.gather_cached_kv(*back, *caches, slots)
        return own_query, *back

    of_all = run(slice(None))
    for row in (0, 77, num_rows - 1):
        for alone, among in zip(run(slice(row, row + 1)), of_all, strict=True):
            assert torch.equal(alone[0], among[row])
