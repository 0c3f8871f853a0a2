"""Attention plans are made again for tensors like a query, which they do not hold."""

import weakref
from typing import Any

import numpy as np
import pytest
import torch

from worker_svc import ops
from worker_svc.layers.attention_plans import AttentionPlans

NUM_TOKENS, WIDTH = 6, 96


def begun() -> AttentionPlans:
    plans = AttentionPlans(max_seq_len=64, max_query_len=NUM_TOKENS)
    starts = torch.tensor([0, NUM_TOKENS], dtype=torch.int32)
    plans.begin(torch.tensor([NUM_TOKENS], dtype=torch.int32), starts)
    return plans


@pytest.mark.parametrize(("num_blocks", "is_held"), [(8, False), (1, True)])
def test_activations_are_freed(num_blocks: int, is_held: bool) -> None:
    """But for a cache that is smaller than they are."""
    memory = np.zeros((NUM_TOKENS, WIDTH), np.float32)
    freed = weakref.ref(memory)
    query = torch.from_numpy(memory)[:, :32].view(NUM_TOKENS, 2, 16)
    keys, values = torch.zeros(2, num_blocks, 2, 8, 16)
    plans = begun()
    plans.get(None, query, keys, values)
    del memory, query
    assert (freed() is not None) == is_held


@pytest.mark.parametrize("start", [0, 1, 2, 8])
@pytest.mark.parametrize("cached", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("layer", [0, 1])
def test_plans_are_made_again_for_what_is_like_the_query(
    monkeypatch: pytest.MonkeyPatch, start: int, cached: torch.dtype, layer: int
) -> None:
    asked = []

    def plan_attention(query: torch.Tensor, *tensors: torch.Tensor, **_: Any) -> None:
        address = query.data_ptr() % 16
        asked.append((query.shape, query.stride(), query.dtype, query.device, address, *tensors))

    monkeypatch.setattr(ops, "plan_attention", plan_attention)
    query = torch.zeros(NUM_TOKENS, WIDTH, dtype=torch.bfloat16)[:, start : start + 32]
    query = query.unflatten(1, (2, 16))
    keys, values = torch.zeros(2, 2, 12, 2, 8, 16, dtype=cached)[layer]
    plans = begun()
    assert plans.get(5, query, keys, values) is None
    plans.make_again()
    for shape, strides, dtype, device, address, *tensors in asked:
        assert (shape, strides) == (query.shape, query.stride())
        assert (dtype, device) == (query.dtype, query.device)
        assert address == query.data_ptr() % 16
        assert tensors[0] is keys
        assert tensors[1] is values
    assert len(asked) == 2
