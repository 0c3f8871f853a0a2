"""Sequences that decode behind the same blocks have the bits that each has alone."""

import os
from typing import TYPE_CHECKING

import pytest
import torch

from tests.emu.launches import launched
from tests.kernels.oracle import DTYPES
from tests.kernels.paged import History, Span, attend
from worker_svc import ops

if TYPE_CHECKING:
    from worker_svc._C import AttentionPlan

HEADS, KV_HEADS = 8, 2
# Two whole partitions and a part of the third; sequences end in it and in the one behind.
SHARED_TOKENS = 1200
ENDS = (1205, 1100, 1300, 1199, 1540, 1060, 1201)
OPTIONS: list[dict[str, object]] = [
    {},
    {"sliding_window": 600},
    {"soft_cap": 10.0, "alibi_slopes": torch.logspace(-1, -8, HEADS, 2)},
    {"sinks": torch.linspace(-2, 9, HEADS)},
]


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "window", "cap_and_alibi", "sinks"])
@pytest.mark.parametrize("head_size", [64, 80, 128])
def test_in_company(
    isa: str, dtype: torch.dtype, head_size: int, options: dict[str, object]
) -> None:
    def history(seed: int) -> History:
        return History.random(max(ENDS), HEADS, KV_HEADS, head_size, dtype, seed)

    document, other = history(0), history(1)
    spans = [Span(document, end - 1, end) for end in ENDS]
    # Others that begin otherwise, a chunk behind the same blocks, and a sequence without rows.
    spans[2:2] = [Span(other, 599, 600), Span(document, 1190, 1210), Span(other, 0, 0)]
    together = attend(spans, shared_tokens=SHARED_TOKENS, **options)
    for span, rows in zip(spans, together, strict=True):
        if span.end > span.begin:
            assert torch.equal(attend([span], **options)[0], rows)


def test_a_call_without_a_plan_shares_nothing(cuda_isa: str) -> None:
    """Its tables lie on the device, where the host does not read."""
    # So many that every emulated device shares the first partition.
    num_seqs, length, block_size = 256, 600, 16
    query = torch.randn(num_seqs, 4, 64).bfloat16()
    cache = torch.randn(-(-length // block_size), 2, block_size, 64).bfloat16()
    tables = torch.arange(len(cache)).int().expand(num_seqs, -1).contiguous()
    sequences = torch.full((num_seqs,), length).int(), torch.arange(num_seqs + 1).int()
    of_plan = query, cache, cache, *sequences
    rows = torch.arange(num_seqs)
    apart = ops.plan_attention(*of_plan)
    shared = ops.plan_attention(*of_plan, block_tables=tables, table_rows=rows)

    def run(plan: "AttentionPlan | None") -> tuple[torch.Tensor, int]:
        out = torch.empty_like(query)
        before = blocks_of(cuda_isa)
        ops.paged_attention(out, query, cache, cache, tables, *sequences, 0.125, plan=plan)
        return out, blocks_of(cuda_isa) - before

    found = [run(plan) for plan in (None, apart, shared)]
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][0], found[2][0])
    if cuda_isa != "gpu" and not os.environ.get("QUIRE_PTX"):
        assert found[0][1] == found[1][1] != found[2][1]


def blocks_of(isa: str) -> int:
    """Return how many blocks the emulator has run; 0 on a GPU. The interpreter counts none."""
    return 0 if isa == "gpu" else launched()["blocks"]


def test_tables_of_a_plan_are_checked(isa: str) -> None:
    query = torch.zeros(2, 4, 64, dtype=torch.bfloat16)
    cache = torch.zeros(2, 2, 16, 64, dtype=torch.bfloat16)
    lengths, starts = torch.tensor([1, 2]).int(), torch.tensor([0, 1, 2]).int()
    tables = torch.zeros(3, 2, dtype=torch.int32)

    def plan(**options: torch.Tensor) -> None:
        ops.plan_attention(query, cache, cache, lengths, starts, **options)

    plan(block_tables=tables, table_rows=torch.tensor([2, 0]))
    with pytest.raises(ValueError, match="table_rows: must be given with block_tables"):
        plan(block_tables=tables)
    with pytest.raises(ValueError, match=r"table_rows\[1\]: must be in \[0, 3\), got 3"):
        plan(block_tables=tables, table_rows=torch.tensor([2, 3]))
    with pytest.raises(ValueError, match=r"seq_lens\[0\]: must be in \[1, 1\), got 1"):
        plan(block_tables=tables[:, :0], table_rows=torch.tensor([2, 0]))
