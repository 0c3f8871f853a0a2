"""Caches and weights of more than 2^31 elements: offsets that 32 bits do not hold."""

import pytest
import torch

from tests.kernels import oracle
from worker_svc import ops

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

KV_HEADS, BLOCK_SIZE, HEAD_SIZE = 8, 16, 128
NUM_BLOCKS = 2**31 // (KV_HEADS * BLOCK_SIZE * HEAD_SIZE) + 200
LENGTH = 1000


def test_blocks_at_the_end_of_a_large_cache() -> None:
    shape = (NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, HEAD_SIZE)
    caches = [torch.empty(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    assert caches[0].numel() > 2**31
    rng = torch.Generator("cuda").manual_seed(0)

    def rows(num_rows: int, heads: int) -> torch.Tensor:
        size = (num_rows, heads, HEAD_SIZE)
        return torch.randn(size, generator=rng, device="cuda").bfloat16()

    key, value, query = rows(LENGTH, KV_HEADS), rows(LENGTH, KV_HEADS), rows(1, 4 * KV_HEADS)
    num_blocks = -(-LENGTH // BLOCK_SIZE)
    table = torch.arange(NUM_BLOCKS - num_blocks, NUM_BLOCKS, dtype=torch.int32).flip(0)
    positions = torch.arange(LENGTH)
    slots = table[positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
    ops.reshape_and_cache(key, value, *caches, slots.cuda())
    back = torch.empty_like(key), torch.empty_like(value)
    ops.gather_cached_kv(*back, *caches, slots.cuda())
    assert torch.equal(back[0], key)
    assert torch.equal(back[1], value)

    # To the first blocks of all, and from there.
    to_the_front = torch.stack([table.long(), torch.arange(num_blocks)], 1)
    ops.copy_blocks(caches[:1], caches[1:], to_the_front)
    for tables in (table, torch.arange(num_blocks, dtype=torch.int32)):
        out = torch.empty_like(query)
        ops.paged_attention(
            out,
            query,
            *caches,
            tables[None].cuda(),
            torch.tensor([LENGTH], dtype=torch.int32, device="cuda"),
            torch.tensor([0, 1], dtype=torch.int32, device="cuda"),
            HEAD_SIZE**-0.5,
        )
        expected, magnitude = oracle.attention(
            query.cpu(), key.cpu(), value.cpu(), LENGTH - 1, HEAD_SIZE**-0.5
        )
        oracle.assert_close(out.cpu(), expected, torch.bfloat16, 3, magnitude)


@pytest.mark.parametrize("rows", [3, 300])
def test_features_at_the_end_of_large_weights(rows: int) -> None:
    in_features = 4096
    weight = torch.empty(
        2**31 // in_features + 72, in_features, dtype=torch.bfloat16, device="cuda"
    )
    assert weight.numel() > 2**31
    rng = torch.Generator("cuda").manual_seed(0)
    weight.normal_(0, in_features**-0.5, generator=rng)
    x = torch.randn(rows, in_features, generator=rng, device="cuda").bfloat16()
    out = torch.empty(rows, len(weight), dtype=x.dtype, device="cuda")
    ops.linear(out, x, weight, None)
    last = slice(-200, None)
    expected = x.double() @ weight[last].double().T
    magnitude = x.double().abs() @ weight[last].double().abs().T
    oracle.assert_close(out[:, last].cpu(), expected.cpu(), torch.bfloat16, 2, magnitude.cpu())
