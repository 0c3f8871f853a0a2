"""Bytes and numbers of blocks against published figures."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from worker_svc.cache.engine import block_bytes
from worker_svc.layers.linear import HeadShare
from worker_svc.parallel.group import ParallelGroup

BLOCK_SIZE = 16


def test_opt_125m_in_fp16() -> None:
    """12 layers of 12 heads of 64: what vLLM reports for this model and this much memory."""
    heads = HeadShare(12, 12, 64, ParallelGroup())
    model = SimpleNamespace(heads=heads, num_layers=12)
    loaded: Any = SimpleNamespace(model=model, kv_cache_dtype=torch.float16)
    bytes_per_block = block_bytes(loaded, BLOCK_SIZE)
    assert bytes_per_block == 12 * 49_152
    num_blocks = 21_946_158_284 // bytes_per_block
    assert num_blocks == 37_207
    assert num_blocks * BLOCK_SIZE == 595_312


@pytest.mark.parametrize(
    ("dtype", "share"), [(torch.float8_e4m3fn, 64 / 128), (torch.int8, 68 / 128)]
)
def test_a_byte_for_each_element(dtype: torch.dtype, share: float) -> None:
    """Half the bytes of float16, and four for the scale of each row of int8."""
    heads = HeadShare(12, 12, 64, ParallelGroup())
    model = SimpleNamespace(heads=heads, num_layers=12)
    loaded: Any = SimpleNamespace(model=model, kv_cache_dtype=dtype)
    assert block_bytes(loaded, BLOCK_SIZE) == 12 * 49_152 * share
