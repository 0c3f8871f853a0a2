"""A row of a prompt, behind a long history and in any chunk, has the bits of a decode."""

import pytest
import torch

from tests.kernels.oracle import DTYPES
from tests.kernels.paged import History, Span, attend

LENGTH, FIRST = 1100, 1055
HEADS, KV_HEADS = 8, 2
# On a GPU four heads a group make a kernel of its own of 16 rows; 32 fill a block of it.
CHUNKS = ((1055, 1056), (1056, 1072), (1072, LENGTH))
DECODED = (1055, 1056, 1071, 1087, 1088, 1099)
OPTIONS: list[dict[str, object]] = [
    {},
    {"sliding_window": 300},
    {"soft_cap": 10.0, "alibi_slopes": torch.logspace(-1, -8, HEADS, 2)},
    {"sliding_window": 600, "sinks": torch.linspace(-2, 9, HEADS)},
]

pytestmark = [
    pytest.mark.pairwise,
    pytest.mark.parametrize("dtype", DTYPES[1:], ids=str),
    pytest.mark.parametrize("options", OPTIONS, ids=["plain", "window", "cap_and_alibi", "sinks"]),
    pytest.mark.parametrize("head_size", [64, 128]),
]


@pytest.fixture
def history(dtype: torch.dtype, head_size: int) -> History:
    return History.random(LENGTH, HEADS, KV_HEADS, head_size, dtype, 0)


def test_chunks_and_decodes(isa: str, history: History, options: dict[str, object]) -> None:
    [whole] = attend([Span(history, FIRST, LENGTH)], **options)
    chunks = [attend([Span(history, *chunk)], **options)[0] for chunk in CHUNKS]
    assert torch.equal(torch.cat(chunks), whole)
    for row in DECODED:
        [decoded] = attend([Span(history, row, row + 1)], **options)
        assert torch.equal(decoded[0], whole[row - FIRST])


def test_in_company(isa: str, history: History, options: dict[str, object]) -> None:
    """Short prompts, sequences that decode, and one whose columns fill no block."""
    span = Span(history, FIRST, LENGTH)
    [alone] = attend([span], **options)
    mates = []
    for seed, (begin, end) in enumerate([(0, 40), (600, 601), (0, 3), (500, 540), (30, 47)], 1):
        dtype, head_size = history.query.dtype, history.query.shape[-1]
        mates.append(Span(History.random(end, HEADS, KV_HEADS, head_size, dtype, seed), begin, end))
    together = attend([*mates[:3], span, *mates[3:]], **options)
    assert torch.equal(together[3], alone)
    for mate, rows in zip(mates, together[:3] + together[4:], strict=True):
        assert torch.equal(attend([mate], **options)[0], rows)
