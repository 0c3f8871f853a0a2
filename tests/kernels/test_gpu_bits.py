"""A row's bits at sizes that are served, which an emulator would take hours for."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.kernels.oracle import DTYPES
from tests.kernels.same_bits import bits
from tests.kernels.test_weight_only_linear import FORMS, Form, weight_of
from worker_svc import ops
from worker_svc.layers.weight_only_linear import pack_for_tensor_cores

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

KV_HEADS, GROUP, BLOCK_SIZE = 2, 4, 16
LENGTH = 2300
ROWS = (1, 7, 16, 24, 33, 64, 100, 200, 256, 500, 2048)
# (in_features, out_features, parts): of one section and of several, of rows that end in a step.
LAYERS = ((4096, 28672, 1), (4096, 6144, 1), (4096, 4096, 8), (14336, 4096, 8), (1160, 3000, 1))

dtypes = pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


@dtypes
@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("spread", [1.0, 12.0], ids=["alike", "far apart"])
def test_every_row_of_a_prompt_is_that_of_decoding(
    dtype: torch.dtype, head_size: int, spread: float
) -> None:
    """Scores that are far apart move maxima seldom, those alike in every tile."""
    num_blocks = -(-LENGTH // BLOCK_SIZE)
    shape = num_blocks, KV_HEADS, BLOCK_SIZE, head_size
    caches = random(*shape, dtype=dtype, seed=1), random(*shape, dtype=dtype, seed=2)
    query = random(LENGTH, KV_HEADS * GROUP, head_size, dtype=dtype, seed=3) * spread
    table = torch.randperm(num_blocks, dtype=torch.int32)

    def attend(seq_lens: list[int], rows: list[int]) -> Tensor:
        starts = torch.tensor([0, *rows]).cumsum(0).int()
        out = torch.full_like(query, torch.nan)
        tables = table.expand(len(seq_lens), -1).contiguous().cuda()
        on_device = torch.tensor(seq_lens).int().cuda(), starts.cuda()
        ops.paged_attention(out, query, *caches, tables, *on_device, head_size**-0.5)
        return out

    decoded = attend([*range(1, LENGTH + 1)], [1] * LENGTH)
    assert torch.equal(bits(attend([LENGTH], [LENGTH])), bits(decoded))
    ends = [100, 1500, LENGTH]
    assert torch.equal(bits(attend(ends, [100, 1400, 800])), bits(decoded))


def check_rows(x: Tensor, out_features: int, multiply: Callable[[Tensor], Tensor]) -> None:
    """Compare rows in batches of each size with the same rows alone."""
    alone = torch.cat([multiply(x[row : row + 1]) for row in range(0, len(x), 61)])
    for rows in ROWS:
        together = multiply(x[:rows])
        assert together.shape == (rows, out_features)
        found = together[::61]
        assert torch.equal(bits(found), bits(alone[: len(found)])), f"{rows} rows"


@dtypes
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_row_of_a_layer_in_any_company(dtype: torch.dtype, layer: tuple[int, int, int]) -> None:
    in_features, out_features, num_parts = layer
    x = random(max(ROWS), in_features, dtype=dtype)
    weight = random(out_features, in_features, dtype=dtype, seed=1)

    def multiply(some: Tensor) -> Tensor:
        out = torch.full((len(some), out_features), torch.nan, device="cuda")
        ops.linear(out, some, weight, None, num_parts=num_parts)
        return out

    check_rows(x, out_features, multiply)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("layer", [(1024, 4096, 1), (2048, 2048, 8)], ids=str)
def test_a_row_of_a_layer_of_few_bits_in_any_company(
    form: Form, layer: tuple[int, int, int]
) -> None:
    in_features, out_features, num_parts = layer
    weight = weight_of(form, out_features, in_features, 128)
    packed, scales = (each.cuda() for each in pack_for_tensor_cores(weight, num_parts))
    x = random(max(ROWS), in_features, dtype=torch.bfloat16)
    bits_of = 4 if form == 4 else 8

    def multiply(some: Tensor) -> Tensor:
        out = torch.full((len(some), out_features), torch.nan, device="cuda")
        ops.weight_only_linear(out, some, packed, scales, None, bits_of, num_parts=num_parts)
        return out

    check_rows(x, out_features, multiply)
