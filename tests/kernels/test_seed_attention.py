"""The attention kernels that the field began with, against the float64 oracle."""

import pytest
import torch
from torch import Tensor

from tests.kernels import oracle
from tests.kernels.oracle import DTYPES, UNIT_ROUNDOFF
from tests.kernels.paged import NO_BLOCK, History
from worker_svc import ops
from worker_svc.ops import compiled

FLOAT32_NOISE = 2.0**-16
LENGTHS = (1, 40, 700)

if not hasattr(compiled._C, "paged_attention_v1"):
    pytest.skip("this build has no CUDA kernels", allow_module_level=True)
if "cuda" not in ops.available_isas() and not torch.cuda.is_available():
    pytest.skip("there is neither a GPU nor the emulator", allow_module_level=True)


def seed_caches(histories: list[History], block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys [B, Hkv, D / x, BS, x], values [B, Hkv, D, BS] and tables; other slots hold NaN."""
    first = histories[0].key
    kv_heads, head_size = first.shape[1:]
    x = 16 // first.element_size()
    counts = [-(-len(history.key) // block_size) for history in histories]
    free = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(0)).tolist()
    shape = (len(free), kv_heads, head_size // x, block_size, x)
    keys = torch.full(shape, torch.nan, dtype=first.dtype)
    values = torch.full((len(free), kv_heads, head_size, block_size), torch.nan, dtype=first.dtype)
    tables = torch.full((len(histories), max(counts)), NO_BLOCK, dtype=torch.int32)
    for row, history in enumerate(histories):
        for token in range(len(history.key)):
            place, slot = divmod(token, block_size)
            if slot == 0:
                tables[row, place] = free.pop()
            block = int(tables[row, place])
            keys[block, :, :, slot] = history.key[token].view(kv_heads, head_size // x, x)
            values[block, :, :, slot] = history.value[token]
    return keys, values, tables


@pytest.mark.pairwise
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("head_size", "has_alibi"), [(64, False), (80, True), (128, False)])
def test_both_versions(
    version: int, block_size: int, dtype: torch.dtype, head_size: int, has_alibi: bool
) -> None:
    histories = [
        History.random(length, 4, 2, head_size, dtype, seed) for seed, length in enumerate(LENGTHS)
    ]
    keys, values, tables = seed_caches(histories, block_size)
    query = torch.stack([history.query[-1] for history in histories])
    out = torch.full_like(query, torch.nan)
    slopes = torch.tensor([0.5, 0.1, 0.02, 0.0]) if has_alibi else None
    operands = [out, query, keys, values, tables, torch.tensor(LENGTHS, dtype=torch.int32)]
    on_gpu = operands if "cuda" in ops.available_isas() else [each.cuda() for each in operands]
    compiled._C.paged_attention_v1(
        *on_gpu,
        head_size**-0.5,
        slopes if slopes is None else slopes.to(on_gpu[0].device),
        max(LENGTHS),
        version == 2,
    )
    out = on_gpu[0].cpu()
    for actual, history in zip(out, histories, strict=True):
        last = len(history.key) - 1
        expected, magnitude = oracle.attention(
            history.query[-1:],
            history.key,
            history.value,
            last,
            head_size**-0.5,
            **({} if slopes is None else {"alibi_slopes": slopes}),
        )
        # One rounding, of the result, and float32 arithmetic on the way.
        ulps = 1 + 4 * FLOAT32_NOISE / UNIT_ROUNDOFF[dtype]
        oracle.assert_close(actual[None], expected, dtype, ulps, magnitude)
