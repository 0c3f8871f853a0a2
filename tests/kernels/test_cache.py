"""Operations that move keys and values: every byte where it belongs, no other byte touched."""

import pytest
import torch
from torch import Tensor

from tests.kernels.oracle import DTYPES
from worker_svc import ops

pytestmark = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def new_cache(
    num_blocks: int, heads: int, size: int, dim: int, dtype: torch.dtype, token_first: bool
) -> Tensor:
    """Random numbers in either layout of blocks."""
    if token_first:
        return random((num_blocks, size, heads, dim), dtype, 5).transpose(1, 2)
    return random((num_blocks, heads, size, dim), dtype, 5)


@pytest.mark.parametrize("token_first", [False, True])
@pytest.mark.parametrize(("heads", "size", "dim"), [(1, 8, 8), (2, 16, 24), (3, 32, 128)])
def test_reshape_and_cache_and_back(
    isa: str, dtype: torch.dtype, heads: int, size: int, dim: int, token_first: bool
) -> None:
    num_blocks, num_tokens = 7, 41
    caches = [new_cache(num_blocks, heads, size, dim, dtype, token_first) for _ in range(2)]
    expected = [cache.clone() for cache in caches]
    # As views of one projection, so that rows are strided.
    qkv = random((num_tokens, 4 * heads, dim), dtype, 1)
    key, value = qkv[:, heads : 2 * heads], qkv[:, 3 * heads :]
    slots = torch.randperm(num_blocks * size, generator=torch.Generator().manual_seed(2))
    slots = slots[:num_tokens].clone()
    slots[[0, 11, 40]] = -1
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[0][slot // size, :, slot % size] = key[token]
            expected[1][slot // size, :, slot % size] = value[token]

    ops.reshape_and_cache(key, value, caches[0], caches[1], slots)
    assert torch.equal(caches[0], expected[0])
    assert torch.equal(caches[1], expected[1])

    back = [torch.full_like(key.contiguous(), 9.0) for _ in range(2)]
    ops.gather_cached_kv(back[0], back[1], caches[0], caches[1], slots)
    kept = slots >= 0
    assert torch.equal(back[0][kept], key[kept])
    assert torch.equal(back[1][kept], value[kept])
    assert (back[0][~kept] == 9.0).all()
    assert (back[1][~kept] == 9.0).all()


@pytest.mark.parametrize("token_first", [False, True])
def test_copy_blocks_in_every_layer(isa: str, dtype: torch.dtype, token_first: bool) -> None:
    keys = [new_cache(9, 2, 16, 40, dtype, token_first) for _ in range(3)]
    values = [new_cache(9, 2, 16, 40, dtype, token_first) + 1 for _ in range(3)]
    expected = [cache.clone() for cache in (*keys, *values)]
    # A chain: what the first pair wrote is what the second copies; a block onto itself is fine.
    pairs = [(0, 4), (4, 7), (8, 1), (3, 3)]
    for cache in expected:
        for source, destination in pairs:
            cache[destination] = cache[source].clone()
    ops.copy_blocks(keys, values, torch.tensor(pairs))
    for cache, wanted in zip((*keys, *values), expected, strict=True):
        assert torch.equal(cache, wanted)


def test_copies_depend_on_each_other_in_every_way(isa: str, dtype: torch.dtype) -> None:
    """Pairs read what was written, write what was read, and write what was written before."""
    rng = torch.Generator().manual_seed(0)
    for num_blocks in (12, 2000):  # most pairs depend on others; hardly any do
        keys = [new_cache(num_blocks, 1, 8, 8, dtype, False) for _ in range(2)]
        values = [new_cache(num_blocks, 1, 8, 8, dtype, False) + 1 for _ in range(2)]
        expected = [cache.clone() for cache in (*keys, *values)]
        pairs = torch.randint(num_blocks, (300, 2), generator=rng)
        for cache in expected:
            for source, destination in pairs.tolist():
                cache[destination] = cache[source].clone()
        ops.copy_blocks(keys, values, pairs)
        for cache, wanted in zip((*keys, *values), expected, strict=True):
            assert torch.equal(cache, wanted)


def test_copy_no_blocks(isa: str, dtype: torch.dtype) -> None:
    cache = new_cache(2, 1, 8, 8, dtype, False)
    before = cache.clone()
    ops.copy_blocks([cache], [cache.clone()], torch.empty(0, 2, dtype=torch.int64))
    assert torch.equal(cache, before)


@pytest.mark.parametrize("token_first", [False, True])
def test_swap_blocks_there_and_back(isa: str, dtype: torch.dtype, token_first: bool) -> None:
    device = new_cache(9, 2, 16, 24, dtype, token_first)
    host = torch.zeros_like(new_cache(5, 2, 16, 24, dtype, token_first))
    original = device.clone()
    ops.swap_blocks(device, host, torch.tensor([[8, 0], [2, 4]]))
    assert torch.equal(host[0], original[8])
    assert torch.equal(host[4], original[2])
    assert (host[1:4] == 0).all()
    assert torch.equal(device, original)

    device.fill_(3.0)
    ops.swap_blocks(host, device, torch.tensor([[0, 8], [4, 2]]))
    assert torch.equal(device[[8, 2]], original[[8, 2]])
    assert (device[[0, 1, 3, 4, 5, 6, 7]] == 3.0).all()


def test_rows_are_copied_bit_by_bit(isa: str, dtype: torch.dtype) -> None:
    """Not a number, infinities and subnormals survive."""
    integers = {4: torch.int32, 2: torch.int16}[dtype.itemsize]
    limits = torch.iinfo(integers)
    bits = torch.randint(limits.min, limits.max, (16, 1, 8), dtype=integers)
    key = bits.view(dtype)
    cache = torch.zeros(2, 1, 8, 8, dtype=dtype)
    ops.reshape_and_cache(key, key, cache, cache.clone(), torch.arange(16))
    assert torch.equal(cache.view(integers).flatten(), bits.flatten())
