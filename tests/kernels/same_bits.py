"""Compares what instruction sets compute, bit by bit."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from worker_svc import ops

vectors = pytest.mark.parametrize("vector_isa", ["avx2", "avx512", "avx512_bf16"])


def check(isa: str, run: Callable[[], Sequence[Tensor]]) -> None:
    """Compare what `run` returns on the instruction set and on the scalar one, as bits.

    NaN equals NaN: the payload is that of one operand or the other.
    """
    if isa not in ops.available_isas():
        pytest.skip(f"this machine cannot run {isa}")
    before = ops.isa()
    try:
        ops.set_isa("scalar")
        expected = [each.clone() for each in run()]
        ops.set_isa(isa)
        actual = run()
    finally:
        ops.set_isa(before)
    for got, wanted in zip(actual, expected, strict=True):
        assert torch.equal(bits(got), bits(wanted))


def bits(x: Tensor) -> Tensor:
    """A tensor as integers, every NaN as the same."""
    if not x.is_floating_point():
        return x
    one_nan = torch.where(x.isnan(), torch.full_like(x, torch.nan), x)
    return one_nan.view(torch.int32 if x.element_size() == 4 else torch.int16)
