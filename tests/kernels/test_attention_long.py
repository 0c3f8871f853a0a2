"""Attention over tens of thousands of tokens: right, and the same bits in any company and chunk."""

import pytest
import torch

from tests.kernels import oracle
from tests.kernels.paged import History, Span, attend

HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 16
CHUNK = 5
# Roundings of a result over so many terms, each of which is small beside their sum.
ULPS = {torch.float32: 200.0, torch.bfloat16: 4.0}


@pytest.mark.parametrize("length", [32_768, pytest.param(131_072, marks=pytest.mark.deep)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_decode_and_a_chunk(cpu_isa: str, dtype: torch.dtype, length: int) -> None:
    history = History.random(length, HEADS, KV_HEADS, HEAD_SIZE, dtype, seed=length)
    first = length - CHUNK
    chunk = attend([Span(history, first, length)])[0]
    alone = attend([Span(history, length - 1, length)])[0]
    short = History.random(40, HEADS, KV_HEADS, HEAD_SIZE, dtype, seed=1)
    in_company = attend([Span(short, 0, 40), Span(history, length - 1, length)])[1]
    assert torch.equal(alone, chunk[-1:])
    assert torch.equal(alone, in_company)
    expected, magnitude = oracle.attention(
        history.query[first:], history.key, history.value, first, HEAD_SIZE**-0.5
    )
    oracle.assert_close(chunk, expected, dtype, ULPS[dtype], magnitude)
