"""Values that are not as long as keys; in latent attention they are the beginnings of keys."""

import pytest
import torch

from tests.kernels.definition import Attention, widen
from tests.kernels.oracle import DTYPES
from tests.kernels.paged import History, Span, attend
from tests.kernels.test_attention import check
from worker_svc import ops

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# Of keys and of values, and whether they are one row.
SIZES = pytest.mark.parametrize(
    ("head_size", "value_size", "of_keys"),
    [
        *((576, 512, True), (96, 64, True), (40, 8, True)),
        *((192, 128, False), (72, 24, False), (64, 128, False), (8, 576, False)),
    ],
)


def random_history(
    length: int, heads: int, head_size: int, value_size: int, of_keys: bool, dtype: torch.dtype,
    seed: int = 0,
) -> History:  # fmt: skip
    history = History.random(length, heads, 1, head_size, dtype, seed)
    if value_size > head_size:
        wide = History.random(length, 1, 1, value_size, dtype, seed + 1)
        return History(history.query, history.key, wide.value)
    return history.with_values(value_size, of_keys=of_keys)


def mixed_batch(
    heads: int, head_size: int, value_size: int, of_keys: bool, dtype: torch.dtype
) -> list[Span]:
    """Decodes, a chunk, a prefill, a sequence without rows, and one of several partitions."""
    bounds = [(76, 77), (0, 21), (30, 47), (12, 12), (0, 1), (1029, 1030)]
    return [
        Span(random_history(end, heads, head_size, value_size, of_keys, dtype, seed), begin, end)
        for seed, (begin, end) in enumerate(bounds)
    ]


@dtypes
@SIZES
@pytest.mark.parametrize("heads", [1, 5, 16])
def test_sizes(
    isa: str, dtype: torch.dtype, head_size: int, value_size: int, of_keys: bool, heads: int
) -> None:
    batch = mixed_batch(heads, head_size, value_size, of_keys, dtype)
    check(batch, dtype, block_size=32)
    check(batch[:4], dtype, block_size=8, token_first=True, fused_query=True)


@dtypes
@SIZES
def test_options(
    isa: str, dtype: torch.dtype, head_size: int, value_size: int, of_keys: bool
) -> None:
    batch = mixed_batch(4, head_size, value_size, of_keys, dtype)
    check(batch, dtype, sliding_window=37, sinks=torch.tensor([-2.0, 0.0, 3.0, 9.0]))
    check(batch, dtype, soft_cap=20.0, alibi_slopes=torch.tensor([0.5, 0.25, 0.1, 0.0]))


@dtypes
@SIZES
def test_a_row_has_its_bits_in_any_company_and_chunk(
    isa: str, dtype: torch.dtype, head_size: int, value_size: int, of_keys: bool
) -> None:
    history = random_history(600, 3, head_size, value_size, of_keys, dtype)
    [whole] = attend([Span(history, 500, 600)])
    batch = mixed_batch(3, head_size, value_size, of_keys, dtype)
    cut = [Span(history, 500, 511), Span(history, 511, 575), Span(history, 575, 600)]
    assert torch.equal(torch.cat(attend([*batch, *cut])[len(batch) :]), whole)
    for row in (500, 511, 512, 599):
        [alone] = attend([Span(history, row, row + 1)], block_size=128)
        assert torch.equal(alone[0], whole[row - 500])


@dtypes
@SIZES
def test_every_instruction_set_has_the_defined_bits(
    cpu_isa: str, dtype: torch.dtype, head_size: int, value_size: int, of_keys: bool
) -> None:
    history = random_history(600, 1, head_size, value_size, of_keys, dtype)
    defined = Attention(
        dtype, widen(history.key[:, 0]), widen(history.value[:, 0]), None, None, head_size**-0.5,
        window=10**6,
    )  # fmt: skip
    [actual] = attend([Span(history, 590, 600)])
    for position in (590, 599):
        expected = defined.row(history.query[position, 0], position)
        assert torch.equal(actual[position - 590, 0], expected), position


@dtypes
def test_keys_are_written_alone(isa: str, dtype: torch.dtype) -> None:
    key = torch.randn(5, 1, 576).to(dtype)
    cache = torch.zeros(3, 1, 8, 576, dtype=dtype)
    slots = torch.tensor([17, -1, 3, 0, 23])
    ops.reshape_and_cache(key, None, cache, None, slots)
    expected = torch.zeros(24, 576, dtype=dtype)
    expected[slots[slots >= 0]] = key[slots >= 0, 0]
    assert torch.equal(cache.view(24, 576), expected)


@dtypes
def test_blocks_of_keys_are_copied_alone(isa: str, dtype: torch.dtype) -> None:
    caches = [torch.randn(4, 1, 8, 40).to(dtype) for _ in range(2)]
    expected = [cache[[0, 0, 2, 0]] for cache in caches]
    ops.copy_blocks(caches, [], torch.tensor([[0, 1], [1, 3]]))
    for cache, each in zip(caches, expected, strict=True):
        assert torch.equal(cache, each)


@pytest.mark.parametrize("head_size", [264, 576])
def test_quantised_rows_are_not_as_long(cpu_isa: str, head_size: int) -> None:
    caches = [torch.zeros(2, 1, 8, head_size + 4, dtype=torch.int8) for _ in range(2)]
    rows = torch.randn(1, 1, head_size)
    with pytest.raises(ValueError, match=r"key: head size must be at most 256 for quantised"):
        ops.reshape_and_cache(rows, rows, *caches, torch.tensor([0]))
