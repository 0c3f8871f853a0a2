"""Rows of an int8 cache: by their definition, within half a step, and each by itself."""

import pytest
import torch
from torch import Tensor

from tests.kernels.cache_formats import Int8Cache
from tests.kernels.oracle import DTYPES, UNIT_ROUNDOFF
from worker_svc import ops

FORMAT = Int8Cache()
KV_HEADS, BLOCK_SIZE, NUM_BLOCKS = 2, 8, 6

pytestmark = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def random(num_rows: int, head_size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Rows of very different sizes."""
    rng = torch.Generator().manual_seed(seed)
    sizes = torch.logspace(-3, 3, num_rows)[:, None, None]
    return (sizes * torch.randn(num_rows, KV_HEADS, head_size, generator=rng)).to(dtype)


def new_cache(head_size: int, token_first: bool = False) -> Tensor:
    shape = (NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, head_size)
    if token_first:
        shape = (NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, head_size)
        return FORMAT.empty(shape, torch.float32).transpose(1, 2)
    return FORMAT.empty(shape, torch.float32)


@pytest.mark.pairwise
@pytest.mark.parametrize("token_first", [False, True])
@pytest.mark.parametrize("head_size", [3, 8, 24, 80, 128, 256])
def test_what_is_cached(
    cpu_isa: str, dtype: torch.dtype, head_size: int, token_first: bool
) -> None:
    key, value = (random(20, head_size, dtype, seed) for seed in (1, 2))
    key[3] = 0
    caches = [new_cache(head_size, token_first) for _ in range(2)]
    expected = [cache.clone() for cache in caches]
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE)[:20].clone()
    slots[5] = -1
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            for rows, cache in zip((key, value), expected, strict=True):
                cache[slot // BLOCK_SIZE, :, slot % BLOCK_SIZE] = FORMAT.encode(rows[token])
    ops.reshape_and_cache(key, value, caches[0], caches[1], slots)
    assert torch.equal(caches[0], expected[0])
    assert torch.equal(caches[1], expected[1])


@pytest.mark.parametrize("head_size", [8, 80, 128])
def test_reads_back_within_half_a_step(cpu_isa: str, dtype: torch.dtype, head_size: int) -> None:
    key, value = (random(20, head_size, dtype, seed) for seed in (1, 2))
    caches = [new_cache(head_size) for _ in range(2)]
    slots = torch.arange(20)
    ops.reshape_and_cache(key, value, caches[0], caches[1], slots)
    back = [torch.full_like(key, 9.0) for _ in range(2)]
    slots[4] = -1
    ops.gather_cached_kv(back[0], back[1], caches[0], caches[1], slots)
    for rows, returned in zip((key, value), back, strict=True):
        assert (returned[4] == 9.0).all()
        kept = torch.arange(20) != 4
        given = rows[kept].double()
        steps = given.abs().amax(-1, keepdim=True) / 127
        bound = steps * (0.5 + 2.0**-15) + UNIT_ROUNDOFF[dtype] * given.abs().amax(-1, True) * 1.01
        assert ((returned[kept].double() - given).abs() <= bound).all()
        # The largest of a row is kept but for rounding.
        largest = returned[kept].double().abs().amax(-1)
        assert torch.allclose(largest, given.abs().amax(-1), rtol=2 * UNIT_ROUNDOFF[dtype])


def test_what_is_no_number_makes_its_row_none(cpu_isa: str, dtype: torch.dtype) -> None:
    """An infinity or NaN is not lost, and stays in its row."""
    head_size = 40
    key = random(6, head_size, dtype)
    key[1, 0, 39] = torch.nan
    key[2, 1, 0] = torch.inf
    key[3, 0, 20] = -torch.inf
    key[4, 1, 7] = torch.nan
    key[4, 1, 8:] = 1e4  # a larger number after it does not hide it
    caches = [new_cache(head_size) for _ in range(2)]
    slots = torch.arange(6)
    ops.reshape_and_cache(key, key, caches[0], caches[1], slots)
    back = [torch.zeros_like(key) for _ in range(2)]
    ops.gather_cached_kv(back[0], back[1], caches[0], caches[1], slots)
    lost = ~key.isfinite().all(-1, keepdim=True)
    assert torch.equal(back[0].isnan(), lost.expand_as(key))


def test_the_smallest_rows_are_zero(cpu_isa: str, dtype: torch.dtype) -> None:
    if dtype == torch.float16:
        pytest.skip("float16 has no such numbers")
    key = torch.full((2, KV_HEADS, 8), 2.0**-120).to(dtype)
    key[1] = 2.0**-118
    caches = [new_cache(8) for _ in range(2)]
    ops.reshape_and_cache(key, key, caches[0], caches[1], torch.arange(2))
    assert (caches[0][0, :, 0] == 0).all()
    assert (caches[0][0, :, 1, :8] == 127).all()


@pytest.mark.pairwise
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(("head_size", "rotary_size"), [(64, 64), (80, 32), (256, 128)])
def test_rotary_and_cache_is_both_in_turn(
    cpu_isa: str, dtype: torch.dtype, head_size: int, rotary_size: int, is_neox: bool
) -> None:
    query, key, value = (random(9, head_size, dtype, seed) for seed in (1, 2, 3))
    angles = torch.rand(50, rotary_size // 2, generator=torch.Generator().manual_seed(1)) * 6
    cos_sin_cache = torch.cat([angles.cos(), angles.sin()], 1)
    positions = torch.tensor([0, 3, 49, 7, 7, 1, 20, 48, 30])
    slots = torch.tensor([13, 0, 47, -1, 8, 9, 10, 40])
    fused, in_turn = ([new_cache(head_size) for _ in range(2)] for _ in range(2))
    own_query = query.clone()
    ops.rotary_and_cache(
        positions, own_query, key, value, cos_sin_cache, is_neox, fused[0], fused[1], slots
    )
    ops.rotary_embedding(positions, query, key, cos_sin_cache, is_neox)
    ops.reshape_and_cache(key[:8], value[:8], in_turn[0], in_turn[1], slots)
    assert torch.equal(own_query, query)
    assert torch.equal(fused[0], in_turn[0])
    assert torch.equal(fused[1], in_turn[1])


def test_blocks_move_as_they_are(cpu_isa: str, dtype: torch.dtype) -> None:
    key = random(16, 24, dtype)
    caches = [new_cache(24) for _ in range(2)]
    ops.reshape_and_cache(key, -key, caches[0], caches[1], torch.arange(16))
    ops.copy_blocks(caches[:1], caches[1:], torch.tensor([[0, 4], [1, 5]]))
    host = torch.zeros_like(caches[0])
    ops.swap_blocks(caches[0], host, torch.tensor([[4, 0], [5, 1]]))
    back = [torch.zeros_like(key) for _ in range(2)]
    ops.gather_cached_kv(back[0], back[1], host, caches[1], torch.arange(16))
    expected = FORMAT.decode(FORMAT.encode(key)).to(dtype)
    assert torch.equal(back[0], expected)
    ops.gather_cached_kv(back[0], back[1], host, caches[1], torch.arange(32, 48))
    assert torch.equal(back[1], -expected)
