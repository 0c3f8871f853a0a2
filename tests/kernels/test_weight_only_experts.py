"""Experts in 8 and 4 bits on a GPU, float8 too: the bits of each expert's own layer."""

import pytest
import torch
from torch import Tensor

from tests.kernels.test_experts import ordered, random, routed
from tests.kernels.test_grouped_linear import made_up
from tests.kernels.test_packed_linear import assert_same_bits
from tests.kernels.test_weight_only_linear import DTYPES, FLOAT8, FORMS, Form, weight_of
from worker_svc import ops
from worker_svc.layers.grouped_linear import GroupedWeight
from worker_svc.layers.weight_only_linear import WeightOnlyLinear, pack_for_tensor_cores

# (in_features, parts, group size): whole steps and not, groups that end within a step and not.
CUTS = [(64, 1, 64), (320, 2, 32), (256, 1, 128)]


def expected_sums(
    x: Tensor, weight: GroupedWeight, num_parts: int, total_features: int, dtype: torch.dtype
) -> list[Tensor]:
    """Those of each part of K, by the layer of one expert."""
    length = weight.shape[1] // num_parts
    sums = []
    for first in range(0, weight.shape[1], length):
        columns = range(first, first + length)
        part = weight.part(range(weight.shape[0]), columns)
        layer = WeightOnlyLinear(part, None, total_features, 1)
        sums.append(layer(x[:, first : first + length].contiguous(), dtype=dtype))
    return sums


# Features of a layer whose sums are cut in other places than those of so few.
MANY_FEATURES = 1 << 16


def check(
    tile_rows: int,
    cut: tuple[int, int, int],
    dtype: torch.dtype,
    form: Form,
    *,
    gathers: bool,
    total: int = MANY_FEATURES,
) -> None:
    """Rows of one tile and of several, an expert without any, features of no whole tile."""
    in_features, num_parts, group_size = cut
    num_rows, num_experts, num_picked, out_features = 45, 5, 2, 70
    logits = random(num_rows, num_experts)
    logits[:, 1] -= 100
    logits[:, 3] += 1
    _, experts = routed(logits, num_picked)
    _, rows, offsets, tiles = ordered(experts, num_experts, tile_rows)
    x = random(num_rows if gathers else len(rows), in_features, seed=1).to(dtype)
    # Each expert has its own: scales of one by a power of two that others do not have.
    weights = []
    for expert in range(num_experts):
        weight = weight_of(form, out_features, in_features, group_size)
        weight.integers.copy_(weight.integers.roll(expert, 0))
        weight.zeros.copy_(weight.zeros.roll(expert, 0))
        weight.scales.mul_(2.0**-expert)
        weights.append(weight)
    packed, scales = (
        torch.stack(each)
        for each in zip(*(pack_for_tensor_cores(each, num_parts) for each in weights), strict=True)
    )
    out_dtype = dtype if num_parts == 1 else torch.float32
    out = torch.full((num_parts, len(rows), out_features), torch.nan, dtype=out_dtype)
    order = offsets, tiles, tile_rows
    ops.weight_only_experts(
        *(out, x, packed, scales, rows if gathers else None, *order, total, weights[0].bits)
    )
    of_position = x[rows.long()] if gathers else x
    for expert, weight in enumerate(weights):
        own = slice(int(offsets[expert]), int(offsets[expert + 1]))
        expected = expected_sums(of_position[own], weight, num_parts, total, out_dtype)
        for part in range(num_parts):
            assert_same_bits(out[part, own], expected[part])


@pytest.mark.pairwise
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tile_rows", [8, 16, 32, 64])
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("gathers", [True, False])
def test_an_expert_has_the_bits_of_its_own_layer(
    cuda_isa: str,
    form: Form,
    dtype: torch.dtype,
    tile_rows: int,
    cut: tuple[int, int, int],
    gathers: bool,
) -> None:
    check(tile_rows, cut, dtype, form, gathers=gathers)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": torch.zeros(4, 128)}, "^x: must be bfloat16 or float16, got float32"),
        ({"rows": None}, r"^x: must be \[M \* k, K\]"),
        ({"tile_rows": 9}, "^tile_rows: must be 8, 16, 32 or 64, got 9"),
        ({"out": torch.zeros(3, 8, 40)}, "^out: parts must divide K = 128, got 3"),
        ({"out": torch.zeros(4, 8, 40)}, "^scales: must be of groups of 32, 64 or 128"),
        ({"total_features": 39}, "^total_features: must be at least N = 40, got 39"),
        ({"bits": 3}, "^bits: must be 8 or 4, got 3"),
        ({"bits": 4}, r"^packed: must be \[ceil\(N / 16\), P \* ceil"),
        ({"packed": torch.zeros(7, 3, 2, 1024, dtype=torch.int8)}, r"^packed: must be \[E, ceil"),
        ({"packed": torch.zeros(8, 3, 2, 1024)}, "^packed: must be int8, got float32"),
        ({"packed": torch.zeros(8, 3, 2, 1024).to(FLOAT8), "bits": 4}, "^bits: must be 8 of float"),
        ({"scales": torch.zeros(8, 3, 2, 16)}, r"^scales: must be \[E, ceil"),
        ({"scales": torch.zeros(8, 3, 2, 2, 16).transpose(3, 4)}, "^scales: must be contiguous"),
        ({}, "^weight_only_experts: must be called with tensors on a GPU"),
    ],
)
def test_bad_arguments(change: dict[str, object], words: str) -> None:
    packed, scales = pack_for_tensor_cores(made_up(40, 128, 8, 64), 2)
    arguments = {
        "out": torch.zeros(2, 8, 40),
        "x": torch.zeros(4, 128, dtype=torch.bfloat16),
        "packed": torch.stack([packed] * 8),
        "scales": torch.stack([scales] * 8),
        "rows": torch.zeros(8, dtype=torch.int32),
        "offsets": torch.zeros(9, dtype=torch.int32),
        "tiles": torch.zeros(8, 2, dtype=torch.int32),
        "tile_rows": 8,
        "total_features": 40,
        "bits": 8,
    } | change
    with pytest.raises(ValueError, match=words):
        ops.weight_only_experts(**arguments)  # type: ignore[arg-type]
