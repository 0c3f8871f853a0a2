"""Keys and values into the caches that the field began with: each byte in place, none besides."""

import pytest
import torch
from torch import Tensor

from tests.kernels.oracle import DTYPES
from tests.kernels.seed_layout import BLOCK_SIZES, empty_caches, put
from worker_svc.ops import compiled

NUM_BLOCKS, NUM_TOKENS = 7, 41


def random(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_caches(heads: int, head_size: int, block_size: int, dtype: torch.dtype) -> list[Tensor]:
    caches = empty_caches(NUM_BLOCKS, heads, head_size, block_size, dtype)
    return [random(*each.shape, dtype=dtype, seed=i) for i, each in enumerate(caches)]


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize(("heads", "head_size"), [(1, 64), (2, 80), (3, 128)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_go_to_their_slots_and_back(
    cuda_isa: str, dtype: torch.dtype, heads: int, head_size: int, block_size: int
) -> None:
    keys, values = random_caches(heads, head_size, block_size, dtype)
    expected = keys.clone(), values.clone()
    # As views of one projection: rows are strided, and few begin at a multiple of 16 bytes.
    qkv = random(NUM_TOKENS, 4 * heads * head_size + 1, dtype=dtype, seed=2)
    rows = qkv[:, 1:].unflatten(1, (4 * heads, head_size))
    key, value = rows[:, heads : 2 * heads], rows[:, 3 * heads :]
    slots = torch.randperm(NUM_BLOCKS * block_size, generator=torch.Generator().manual_seed(3))
    slots = slots[:NUM_TOKENS].clone()
    slots[[0, 11, 40]] = -1
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            put(expected, slot, key[token], value[token])

    compiled._C.reshape_and_cache_v1(key, value, keys, values, slots)
    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])

    key_back, value_back = (torch.full_like(key.contiguous(), 9.0) for _ in range(2))
    compiled._C.gather_cached_kv_v1(key_back, value_back, keys, values, slots)
    kept = slots >= 0
    for back, row in ((key_back, key), (value_back, value)):
        assert torch.equal(back[kept], row[kept])
        assert (back[~kept] == 9.0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_blocks_are_copied_in_every_layer(cuda_isa: str, dtype: torch.dtype) -> None:
    layers = [random_caches(2, 80, 16, dtype) for _ in range(2)]
    keys, values = ([layer[i] for layer in layers] for i in range(2))
    expected = [cache.clone() for cache in (*keys, *values)]
    # What the first pair wrote is what the second copies.
    pairs = [(0, 4), (4, 5), (6, 1)]
    for cache in expected:
        for source, destination in pairs:
            cache[destination] = cache[source].clone()
    compiled._C.copy_blocks_v1(keys, values, torch.tensor(pairs))
    for cache, wanted in zip((*keys, *values), expected, strict=True):
        assert torch.equal(cache, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_blocks_are_swapped_there_and_back(cuda_isa: str, dtype: torch.dtype) -> None:
    for device in random_caches(2, 128, 8, dtype):
        host = torch.zeros_like(device[:3])
        original = device.clone()
        compiled._C.swap_blocks_v1(device, host, torch.tensor([[6, 0], [2, 2]]))
        assert torch.equal(host[[0, 2]], original[[6, 2]])
        assert (host[1] == 0).all()
        device.fill_(3.0)
        compiled._C.swap_blocks_v1(host, device, torch.tensor([[0, 6], [2, 2]]))
        assert torch.equal(device[[6, 2]], original[[6, 2]])
        assert (device[[0, 1, 3, 4, 5]] == 3.0).all()


def test_what_does_not_fit_is_named(cuda_isa: str) -> None:
    keys, values = random_caches(2, 64, 16, torch.float16)
    row = torch.zeros(1, 2, 64, dtype=torch.float16)
    slot = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"^key_cache: must be \[B, Hkv, D / x, BS, x\]"):
        compiled._C.reshape_and_cache_v1(row, row, keys[:, :, :4], values, slot)
    with pytest.raises(ValueError, match=r"^key: must have the 2 heads of key_cache, got 1"):
        compiled._C.reshape_and_cache_v1(row[:, :1], row[:, :1], keys, values, slot)
    with pytest.raises(ValueError, match=r"^key: head size must be a multiple of 8, got 60"):
        compiled._C.gather_cached_kv_v1(row[..., :60], row[..., :60], keys, values, slot)
    with pytest.raises(ValueError, match=r"^src_cache: must be contiguous"):
        compiled._C.swap_blocks_v1(keys[:, :1], keys[:, :1], torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match=r"^block_mapping\[0\] source: must be in \[0, 7\), got 7"):
        compiled._C.copy_blocks_v1([keys], [values], torch.tensor([[7, 1]]))
