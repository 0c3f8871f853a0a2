"""Which layers of the CPU multiply in float32: those whose own type breaks the invariance rule.

oneDNN without instructions for bf16 (AVX-512 before Cooper Lake) cuts the sums of a product over
its threads where rows and features are too few to occupy them. So bits depend on the number of
rows, of threads and of ranks. Its float32 products have other code, which never does so.

Each shape is tried once in a process, on the machine at hand. It is tried as the whole layer and as
the share of one rank of many, whatever this rank's share is, so that all ranks decide alike,
however many there are.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock

import torch

from worker_svc.layers.invariant_linear import InvariantLinear
from worker_svc.parallel.group import ParallelGroup

MAX_RANKS = 8
"""The fewer the features and rows, the likelier sums are cut: shares in between need no trial."""

ROW_COUNTS = (2, 64)
NUM_WEIGHT_ROWS = 64
MAX_TRIED_FEATURES = 8192
"""Wider layers are less likely to have their sums cut, and take memory to try."""

# One at a time: the number of threads that torch computes with belongs to the process.
_trying = Lock()


@dataclass(frozen=True, slots=True)
class LinearShape:
    """What decides how a layer is multiplied.

    Attributes:
        in_features: of this rank: the length of a sum.
        total_features: out_features over all ranks.
        is_cut: whether ranks share the output features.
        dtype: of rows and weights.
    """

    in_features: int
    total_features: int
    is_cut: bool
    dtype: torch.dtype


def needs_float32(shape: LinearShape) -> bool:
    """Whether products of this shape have other bits on some number of ranks, rows or threads.

    False for float32 itself, for which there is nothing better here.
    """
    if shape.dtype == torch.float32:
        return False
    with _trying:
        return _try_once(shape, _thread_counts())


def _thread_counts() -> tuple[int, ...]:
    """As many as the machine has cores, which tempt oneDNN most, and as many as are in use."""
    return tuple(sorted({os.cpu_count() or 1, torch.get_num_threads()}, reverse=True))


@cache
def _try_once(shape: LinearShape, thread_counts: tuple[int, ...]) -> bool:
    num_threads = torch.get_num_threads()
    try:
        return _has_other_bits(shape, thread_counts)
    finally:
        torch.set_num_threads(num_threads)


@torch.inference_mode()
def _has_other_bits(shape: LinearShape, thread_counts: tuple[int, ...]) -> bool:
    """Compare narrow layers on many threads with a few rows on one thread, where no sum is cut."""
    rows, weight_rows = cancelling_operands(
        shape.in_features, shape.dtype, max(ROW_COUNTS), NUM_WEIGHT_ROWS
    )
    torch.set_num_threads(1)
    expected = InvariantLinear(weight_rows, None)(rows)
    rank_counts = (MAX_RANKS, 1) if shape.is_cut else (1,)
    for num_ranks in rank_counts:
        width = min(-(-shape.total_features // num_ranks), MAX_TRIED_FEATURES)
        # Output features repeat: their order of adding is tried, not their weights.
        repeated = torch.arange(width) % NUM_WEIGHT_ROWS
        for num_threads in thread_counts:
            torch.set_num_threads(num_threads)
            linear = InvariantLinear(weight_rows[repeated], None)
            for count in ROW_COUNTS:
                if not torch.equal(linear(rows[:count]), expected[:count, repeated]):
                    return True
    return False


def cancelling_operands(
    in_features: int, dtype: torch.dtype, num_rows: int, num_weight_rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows [num_rows, in] and weights [num_weight_rows, in] whose products cancel.

    Their sums are all rounding error, so that another order of adding shows in nearly every one,
    after rounding to the short type too.
    """
    generator = torch.Generator().manual_seed(0)
    half = in_features // 2
    order = torch.randperm(2 * half, generator=generator)

    def operand(count: int, sign: int) -> torch.Tensor:
        values = torch.randn(count, half, generator=generator)
        values *= torch.exp2(torch.randint(-6, 6, values.shape, generator=generator).float())
        both = torch.cat((values, sign * values), dim=1)[:, order]
        padding = both.new_zeros(count, in_features - 2 * half)
        # Small enough for sums in float16.
        return torch.cat((both, padding), dim=1).mul(2**-6).to(dtype)

    return operand(num_rows, -1), operand(num_weight_rows, 1)


def agree_on_float32(linears: Sequence[InvariantLinear], parallel: ParallelGroup) -> None:
    """Have layers multiply in float32 on every rank where they do so on any.

    Ranks on different machines may have decided differently. All ranks call it, with layers of the
    same shapes in the same order.

    Mutates: the layers.
    """
    if parallel.size == 1 or not linears:
        return
    own = torch.tensor([linear.is_float32 for linear in linears], dtype=torch.uint8)
    on_any = torch.stack(parallel.communicator.all_gather(own)).amax(dim=0)
    for linear, wanted in zip(linears, on_any.tolist(), strict=True):
        if wanted:
            linear.multiply_in_float32()
