"""Slopes against those of transformers, and each rank's share of them."""

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from worker_svc.layers.alibi import alibi_slopes
from worker_svc.layers.linear import HeadShare
from worker_svc.parallel.group import ParallelGroup

HEAD_COUNTS = [1, 2, 3, 4, 6, 7, 12, 16, 24, 32, 71, 112]


def slopes_of(num_heads: int, parallel: ParallelGroup, **options: float) -> torch.Tensor:
    return alibi_slopes(HeadShare(num_heads, num_heads, 16, parallel), **options)


@pytest.mark.parametrize("num_heads", HEAD_COUNTS)
def test_equal_to_bloom_s(num_heads: int) -> None:
    expected = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)[:, 0, 1]
    slopes = slopes_of(num_heads, ParallelGroup())
    assert slopes.dtype == torch.float32
    assert torch.allclose(slopes, expected, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("num_heads", HEAD_COUNTS)
@pytest.mark.parametrize("bias_max", [8, 16])
def test_equal_to_mpt_s(num_heads: int, bias_max: int) -> None:
    expected = -build_mpt_alibi_tensor(num_heads, 2, bias_max)[:, 0, 0]
    slopes = slopes_of(num_heads, ParallelGroup(), bias_max=bias_max)
    assert torch.allclose(slopes, expected, rtol=1e-5, atol=0.0)


def test_ranks_share_them_by_head() -> None:
    parts = [slopes_of(6, ParallelGroup(rank, 2)) for rank in range(2)]
    assert torch.equal(torch.cat(parts), slopes_of(6, ParallelGroup()))
