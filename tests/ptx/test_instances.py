"""Attention of every head size, type and number of columns, and layers of every shape.

A pipeline is as deep as the device has it that QUIRE_EMULATED_DEVICE names.
"""

import pytest
import torch

from tests.kernels import (
    test_attention,
    test_attention_latent,
    test_head_linear,
    test_int8_linear,
    test_linear,
    test_weight_only_experts,
    test_weight_only_linear,
)
from tests.kernels.cache_formats import PLAIN, Float8Cache, PlainCache
from tests.kernels.oracle import DTYPES
from tests.kernels.paged import History, Span, attend
from tests.ptx import interpreter


@pytest.mark.parametrize("rows", [1, 10], ids=["decode", "chunk"])
@pytest.mark.parametrize("cache", [PLAIN, Float8Cache()], ids=["plain", "e4m3"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_size", [40, 64, 80, 96, 112, 128, 192, 256])
def test_attention_of_every_shape(
    cuda_isa: str, head_size: int, dtype: torch.dtype, cache: PlainCache, rows: int
) -> None:
    """Sequences of which partitions are split and merged, and of which a block takes one."""
    spans = [
        Span(History.random(length, 2, 1, head_size, dtype, seed), length - rows, length)
        for seed, length in enumerate((530, 33))
    ]
    options = {"soft_cap": 20.0, "sinks": torch.tensor([-1.0, 4.0])} if rows > 1 else {}
    test_attention.check(spans, dtype, cache, **options)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("head_size", [64, 128])
def test_prompts_of_every_shape(cuda_isa: str, head_size: int, dtype: torch.dtype) -> None:
    """One of which partitions are split and merged, and one that a block takes whole."""
    spans = [
        Span(History.random(length, 8, 2, head_size, dtype, seed), length - 33, length)
        for seed, length in enumerate((1060, 40))
    ]
    options = {"soft_cap": 20.0, "sinks": torch.linspace(-2, 5, 8)}
    test_attention.check(spans, dtype, PLAIN, **options)
    rows = attend(spans, **options)
    with interpreter.single_warps():
        for each, same in zip(rows, attend(spans, **options), strict=True):
            assert torch.equal(each, same)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("head_size", [64, 128])
def test_sharing_of_every_shape(cuda_isa: str, head_size: int, dtype: torch.dtype) -> None:
    """A partition of so many sequences and heads that an A100 reads it once for all of them."""
    history = History.random(540, 16, 16, head_size, dtype, 0)
    spans = [Span(history, end - 1, end) for end in range(520, 534)]
    together = attend(spans, shared_tokens=512)
    for place in (0, 13):
        assert torch.equal(attend([spans[place]])[0], together[place])
    with interpreter.single_warps():
        for each, same in zip(together, attend(spans, shared_tokens=512), strict=True):
            assert torch.equal(each, same)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("heads", [5, 33])
def test_latent_attention_of_every_shape(cuda_isa: str, heads: int, dtype: torch.dtype) -> None:
    """Sequences of which partitions are split and merged, and of which a block takes one."""
    spans = test_attention_latent.batch(heads, dtype, (539, 540), (33, 35))
    test_attention.check(spans, dtype, soft_cap=20.0, sinks=torch.linspace(-2, 5, heads))


# Rows and features of the result: on the smallest device each has other tiles on warpgroups.
LAYERS = [(30, 64), (260, 72), (60, 72), (260, 264), (70, 392)]


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("num_parts", [1, 4])
@pytest.mark.parametrize("shape", LAYERS, ids=str)
def test_layers_have_the_same_bits_in_every_shape(
    cuda_isa: str, shape: tuple[int, int], num_parts: int, dtype: torch.dtype
) -> None:
    rows, out_features = shape
    x, weight, bias = test_linear.operands(rows, 136 * num_parts, out_features, dtype)
    whole = test_linear.linear(x, weight, bias, num_parts)
    assert torch.equal(whole[-9:], test_linear.linear(x[-9:], weight, bias, num_parts))
    with interpreter.single_warps():
        assert torch.equal(whole, test_linear.linear(x, weight, bias, num_parts))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [3, 13, 30, 60, 260])
@pytest.mark.parametrize("shape", [(136, 136), (33, 21)], ids=str)
def test_layers_of_heads_of_every_shape(
    cuda_isa: str, shape: tuple[int, int], rows: int, dtype: torch.dtype
) -> None:
    test_head_linear.check(rows, 2, shape, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [3, 13, 30, 70])
def test_int8_layers_of_every_shape(cuda_isa: str, dtype: torch.dtype, rows: int) -> None:
    x, weight, bias = test_int8_linear.operands(rows, 264, 128, dtype)
    expected = test_int8_linear.int8_dense(x, weight, bias, 4)
    layer = test_int8_linear.Int8Linear(weight, bias, 4)
    assert torch.equal(layer(x), expected.to(dtype))
    assert torch.equal(layer(x, torch.float32), expected)


@pytest.mark.parametrize("form", test_weight_only_linear.FORMS, ids=str)
@pytest.mark.parametrize("dtype", test_weight_only_linear.DTYPES, ids=str)
@pytest.mark.parametrize("cut", [(64, 1, 64), (128, 2, 32)], ids=str)
@pytest.mark.parametrize("rows", [3, 13, 60, 70, 260])
def test_layers_of_few_bits_of_every_shape(
    cuda_isa: str,
    rows: int,
    cut: tuple[int, int, int],
    dtype: torch.dtype,
    form: test_weight_only_linear.Form,
) -> None:
    test_weight_only_linear.check(rows, cut, 330, dtype, form)
    if rows == 60:
        with interpreter.single_warps():
            test_weight_only_linear.check(rows, cut, 330, dtype, form)


@pytest.mark.parametrize("form", test_weight_only_linear.FORMS, ids=str)
@pytest.mark.parametrize("dtype", test_weight_only_linear.DTYPES, ids=str)
@pytest.mark.parametrize("tile_rows", [8, 32, 64])
def test_experts_of_few_bits_of_every_shape(
    cuda_isa: str, tile_rows: int, dtype: torch.dtype, form: test_weight_only_linear.Form
) -> None:
    test_weight_only_experts.check(tile_rows, (128, 2, 32), dtype, form, gathers=tile_rows != 32)
