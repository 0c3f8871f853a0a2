"""Calls of the kernels that need every barrier and every wait which those have."""

from dataclasses import dataclass

import torch

from tests.kernels import (
    test_experts,
    test_head_linear,
    test_layers,
    test_linear,
    test_logits,
    test_packed_linear,
    test_peer_sum,
    test_sampling,
    test_weight_only_experts,
    test_weight_only_linear,
)
from tests.kernels.cache_formats import Float8Cache
from tests.kernels.dense_definition import int8_dense
from tests.ptx import interpreter
from tests.ptx.attention_runs import (
    Run,
    attention,
    latent,
    merges,
    prompt,
    prompt_on_warpgroups,
    sharing,
    sharing_on_warpgroups,
)
from worker_svc.layers.int8_linear import Int8Linear

ISA = "cuda"
WARPGROUPS = "warpgroup_linear_kernel"
WEIGHT_ONLY_WARPGROUPS = "warpgroup_weight_only_kernel"
PROMPTS_ON_WARPGROUPS = "warpgroup_prompt_kernel"
SHARING_ON_WARPGROUPS = "warpgroup_shared_kernel"
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@dataclass(frozen=True, slots=True)
class Case:
    """Calls, and what they run.

    Attributes:
        kernel: pattern of the mangled names.
        run: makes the calls and checks what they give, by AssertionError.
    """

    kernel: str
    run: Run


def linear(rows: int, in_features: int, out_features: int, dtype: torch.dtype) -> Run:
    """Compute a layer, one whose sections blocks share, and one of a single step."""

    def run() -> None:
        with interpreter.single_warps():
            for shape in ((in_features, out_features), (600, 72), (64, 64)):
                x, weight, bias = test_linear.operands(rows, *shape, dtype)
                actual = test_linear.linear(x, weight, bias)
                test_linear.assert_as_exact_as_torch(actual, x, weight, bias)

    return run


def warpgroups(
    dtype: torch.dtype,
    *shapes: tuple[int, int, int],
    num_parts: int = 1,
    total_features: int | None = None,
) -> Run:
    """Compute layers whose tiles the emulated device gives to warpgroups.

    Args:
        dtype: of all operands.
        shapes: rows, features of a row of x, and those of the result.
        num_parts: that K has.
        total_features: of the whole layer, which decide where its sums are cut; None for its own.
    """

    def run() -> None:
        for shape in shapes:
            operands = *test_linear.operands(*shape, dtype), num_parts, total_features
            actual = test_linear.linear(*operands)
            with interpreter.single_warps():
                expected = test_linear.linear(*operands)
            assert torch.equal(actual, expected)

    return run


def int8_linear(rows: int) -> Run:
    """Compute layers of one part and of several, whose sums warps share."""

    def run() -> None:
        for num_parts in (1, 4):
            x, weight, bias = test_packed_linear.operands(rows, 264, 136, BF16)
            expected = int8_dense(x, weight, bias, num_parts)
            layer = Int8Linear(weight, bias, num_parts)
            test_packed_linear.assert_same_bits(layer(x, F32), expected)

    return run


def weight_only_linear(rows: int, form: test_weight_only_linear.Form) -> Run:
    """Compute layers of 8 or 4 bits whose sections blocks share, and one of a single step."""

    def run() -> None:
        five_steps = test_weight_only_linear.FIVE_STEPS
        with interpreter.single_warps():
            for cut, out_features in (((640, 1, 32), 330), ((640, 1, 64), 72), ((64, 1, 64), 64)):
                for total in (out_features, five_steps):
                    test_weight_only_linear.check(rows, cut, out_features, BF16, form, total)

    return run


def weight_only_warpgroups(
    form: test_weight_only_linear.Form, *shapes: tuple[int, int, int], num_parts: int = 1
) -> Run:
    """Compute layers of 8 or 4 bits whose tiles the emulated device gives to warpgroups.

    Args:
        form: of the weights.
        shapes: rows, features of a row of x, and those of the result.
        num_parts: that K has.
    """

    def run() -> None:
        for rows, in_features, out_features in shapes:
            cut = (in_features, num_parts, 64)
            test_weight_only_linear.check(rows, cut, out_features, BF16, form)

    return run


def head_linear(rows: int, dtype: torch.dtype) -> Run:
    """Compute layers of heads of several sections, and of a single step."""

    def run() -> None:
        for shape in ((600, 72), (64, 64)):
            test_head_linear.check(rows, 3, shape, dtype)

    return run


def experts(tile_rows: int) -> Run:
    """Compute layers of several experts, and of a single step, gathering rows and not."""

    def run() -> None:
        for in_features, gathers in ((600, True), (600, False), (64, True), (64, False)):
            test_experts.test_an_expert_has_the_bits_of_its_own_layer(
                ISA, BF16, tile_rows, in_features, 1, gathers
            )

    return run


def weight_only_experts(tile_rows: int, form: test_weight_only_linear.Form) -> Run:
    """Compute layers of several experts, and of a single step, gathering rows and not."""

    def run() -> None:
        five_steps = test_weight_only_linear.FIVE_STEPS
        for cut, gathers in (((640, 1, 32), True), ((64, 1, 64), True), ((64, 1, 64), False)):
            for total in (test_weight_only_experts.MANY_FEATURES, five_steps):
                test_weight_only_experts.check(
                    tile_rows, cut, BF16, form, gathers=gathers, total=total
                )

    return run


def order_experts() -> None:
    """Order pairs of more experts than a block has warps."""
    test_experts.test_pairs_lie_in_the_order_of_experts(ISA, (40, 60, 4), 8)


def sample() -> None:
    """Draw with each filter, from rows of several parts, with few candidates and with many."""
    logits = test_sampling.random_logits(2, 2100)
    for rows, params in (
        (logits, {"top_k": 40}),
        (logits, {"top_k": 300, "top_p": 0.6}),
        (0 * logits, {"top_k": 2060, "top_p": 0.9}),
    ):
        expected = test_sampling.on_the_cpu(rows, **params)
        assert torch.equal(test_sampling.in_rows_of(1, rows, **params), expected)
    test_sampling.test_unusable_rows_are_named_and_leave_the_others_alone(ISA)


def top_logprobs() -> None:
    """Find log-probabilities, of rows with and without ties."""
    for has_ties in (False, True):
        test_logits.test_top_logprobs(ISA, 300, 20, has_ties)
        test_logits.test_top_logprobs(ISA, 4099, 5, has_ties)
    test_logits.test_unusable_rows_are_not_a_number_and_leave_the_others_alone(ISA)


def penalties() -> None:
    """Apply penalties."""
    test_logits.test_penalties_have_the_bits_of_torchs(ISA, 8192, 40)


def norms() -> None:
    """Norms of one row to a block, and of several heads."""
    test_layers.test_rms_norm(ISA, BF16, 768)
    test_layers.test_fused_add_rms_norm_is_both_in_turn(ISA, BF16, 768)
    test_layers.test_layer_norm(ISA, BF16, 768, True)


def peer_sum() -> None:
    """Add up what the others have left, in several blocks and calls."""
    test_peer_sum.test_a_rank_whose_others_have_come(ISA, 4, BF16)


CASES = {
    "attention, bfloat16, 8 columns": Case(
        "attention_mma_kernelI13__nv_bfloat16S2_Li128ELi1E", attention(128, BF16)
    ),
    "attention, float16, 16 columns": Case(
        "attention_mma_kernelI6__halfS2_Li128ELi2E", attention(128, F16, group=16)
    ),
    "attention, e4m3": Case(
        "attention_mma_kernelI13__nv_bfloat16NS0_4e4m3ELi128ELi1E",
        attention(128, BF16, Float8Cache()),
    ),
    "attention, heads of 256": Case(
        "attention_mma_kernelI13__nv_bfloat16S2_Li256ELi1E", attention(256, BF16)
    ),
    "merges of partitions": Case("attention_merge_kernelI13__nv_bfloat16Li64ELi8E", merges(150)),
    "attention of prompts": Case(
        "attention_prompt_kernelI13__nv_bfloat16Li128E", prompt(128, BF16)
    ),
    "attention of prompts on warpgroups, heads of 128": Case(
        f"{PROMPTS_ON_WARPGROUPS}I13__nv_bfloat16Li128E", prompt_on_warpgroups(128, BF16)
    ),
    "attention of prompts on warpgroups, heads of 64": Case(
        f"{PROMPTS_ON_WARPGROUPS}I6__halfLi64E", prompt_on_warpgroups(64, F16)
    ),
    "attention of what is shared": Case(
        "attention_shared_kernelI13__nv_bfloat16Li128E", sharing(128, BF16, 4)
    ),
    "attention of what is shared on warpgroups, heads of 128": Case(
        f"{SHARING_ON_WARPGROUPS}I13__nv_bfloat16Li128E", sharing_on_warpgroups(128, BF16, 16)
    ),
    "attention of what is shared on warpgroups, heads of 64": Case(
        f"{SHARING_ON_WARPGROUPS}I6__halfLi64E", sharing_on_warpgroups(64, F16, 16)
    ),
    "latent attention, 16 columns": Case(
        "attention_latent_kernelI13__nv_bfloat16Li1E", latent(5, BF16)
    ),
    "latent attention, 32 columns": Case("attention_latent_kernelI6__halfLi2E", latent(33, F16)),
    "attention, float32": Case("attention_plain_kernelIff", attention(64, F32)),
    "linear, 8 rows": Case("[0-9]linear_kernel.*Li64ELi8E", linear(3, 320, 256, BF16)),
    "linear, 16 rows": Case("[0-9]linear_kernel.*Li64ELi16E", linear(13, 320, 256, BF16)),
    "linear, 32 rows": Case("[0-9]linear_kernel.*Li64ELi32E", linear(30, 320, 256, F16)),
    "linear, 64 rows": Case("[0-9]linear_kernel.*Li64ELi64E.*Lb1E", linear(60, 320, 256, BF16)),
    "linear, 128 rows": Case("[0-9]linear_kernel.*Li128ELi128E", linear(260, 320, 256, BF16)),
    "linear, unaligned": Case("[0-9]linear_kernel.*Lb0ELb0E", linear(13, 33, 77, F32)),
    "warpgroups, 32 rows": Case(
        f"{WARPGROUPS}.*Li64ELi32E.*Lb0E",
        warpgroups(BF16, (30, 320, 256), (30, 600, 72), (30, 64, 64)),
    ),
    "warpgroups, 64 rows": Case(
        f"{WARPGROUPS}.*Li64ELi64ELi4E.*Lb0E",
        warpgroups(F16, (260, 600, 72), (260, 64, 64)),
    ),
    "warpgroups, 64 rows of one block": Case(
        f"{WARPGROUPS}.*Li64ELi64ELi9E.*Lb0E", warpgroups(BF16, (60, 840, 72), (60, 64, 64))
    ),
    "warpgroups, 64 rows and 128 features": Case(
        f"{WARPGROUPS}.*Li128ELi64E.*Lb0E",
        warpgroups(BF16, (40, 600, 776), (33, 64, 776)),
    ),
    "warpgroups, 128 rows": Case(
        f"{WARPGROUPS}.*Li128ELi128ELi6E", warpgroups(BF16, (70, 600, 392), (70, 64, 392))
    ),
    "warpgroups, 256 rows": Case(
        f"{WARPGROUPS}.*WidestRowsOf256",
        warpgroups(BF16, (200, 600, 392), (200, 64, 392), total_features=1 << 16),
    ),
    "warpgroups, 256 rows of float16": Case(
        f"{WARPGROUPS}.*WidestRowsOf256",
        warpgroups(F16, (200, 600, 392), (200, 64, 392), total_features=1 << 16),
    ),
    "warpgroups, 64 rows of several parts": Case(
        f"{WARPGROUPS}.*Li64ELi64ELi4ELi2E",
        warpgroups(BF16, (60, 592, 264), num_parts=2),
    ),
    "warpgroups, 128 rows of several parts": Case(
        f"{WARPGROUPS}.*Li128ELi128ELi5E",
        warpgroups(BF16, (70, 752, 392), num_parts=2),
    ),
    "int8 linear, 8 rows": Case("int8_linear_kernel.*Li1ELi1E", int8_linear(5)),
    "int8 linear, 16 rows": Case("int8_linear_kernel.*Li1ELi2E", int8_linear(13)),
    "int8 linear, 32 rows": Case("int8_linear_kernel.*Li1ELi4E", int8_linear(30)),
    "weights of 8 bits, 8 rows": Case(
        "[0-9]weight_only_kernel.*StreamedShape.*Li8ELi8E.*ELi8EEELb0E", weight_only_linear(3, 8)
    ),
    "weights of 4 bits, 64 rows": Case(
        "[0-9]weight_only_kernel.*Li64ELi64E.*ELi4EEELb0E", weight_only_linear(60, 4)
    ),
    "weights of float8, 8 rows": Case(
        "[0-9]weight_only_kernel.*Float8Shape.*StreamedShape.*Li8ELi8E.*EEELb0E",
        weight_only_linear(3, torch.float8_e4m3fn),
    ),
    "weights of 4 bits on warpgroups, 64 rows": Case(
        f"{WEIGHT_ONLY_WARPGROUPS}.*bfloat16Li128ELi64E.*ELi4EEELb0E",
        weight_only_warpgroups(4, (60, 640, 330), (40, 8192, 72), (60, 64, 330)),
    ),
    "weights of 8 bits on warpgroups, 128 rows": Case(
        f"{WEIGHT_ONLY_WARPGROUPS}.*bfloat16Li128ELi128ELi8E.*ELi8EEELb0E",
        weight_only_warpgroups(8, (70, 768, 392), (70, 64, 392)),
    ),
    "weights of float8 on warpgroups, 128 rows of several parts": Case(
        f"{WEIGHT_ONLY_WARPGROUPS}.*Float8Shape.*bfloat16Li128ELi128ELi6E",
        weight_only_warpgroups(torch.float8_e4m3fn, (70, 512, 392), num_parts=2),
    ),
    "layers of heads, 8 rows": Case("head_linear_kernel.*Li64ELi8E", head_linear(3, BF16)),
    "layers of heads, 64 rows": Case("head_linear_kernel.*Li64ELi64E.*Lb1E", head_linear(40, F16)),
    "experts, 8 rows": Case("expert_linear_kernel.*Li64ELi8E", experts(8)),
    "experts, 64 rows": Case("expert_linear_kernel.*Li64ELi64E.*Lb1ELb", experts(64)),
    "experts of 4 bits, 8 rows": Case(
        "weight_only_experts_kernel.*StreamedShape.*Li8ELi8E.*ELi4EEE", weight_only_experts(8, 4)
    ),
    "order of experts": Case("order_experts_kernel", order_experts),
    "sampler": Case("sample_.*_kernel", sample),
    "log-probabilities": Case("top_logprobs_kernel", top_logprobs),
    "penalties": Case("penalty_kernel", penalties),
    "sum over ranks": Case("peer_sum_kernelI13__nv_bfloat16Li4E", peer_sum),
    "norms": Case("norm_kernelI13", norms),
}
