"""Bugs planted in the kernels that the field began with: the emulator must notice each of them."""

import pytest

from tests.emu.planted_bugs import ROOT, Builder, assert_noticed, run

KERNEL = (
    "fused_decode.cu",
    "cache_v1.cu",
    "attention_v1.cuh",
    "layout_v1.cuh",
    "packed.cuh",
)
SOURCES = ("core/check.cpp",)

# What is wrong: the text of the kernels that is replaced, and by what.
MUTANTS = {
    "no barrier before the token's rows are read": (
        "{ value[d] = x; });\n  __syncthreads();",
        "{ value[d] = x; });",
    ),
    "only the first group's token is cached": ("if (head % group == 0)", "if (head == 0)"),
    "the key of another group": ("p.num_heads + head / group;", "p.num_heads + head % group;"),
    "no bias": ("bias_ != nullptr ? x + to_float(bias_[begin + d]) : x", "x"),
    "a value that is rotated": ("cosines, 0, [value]", "cosines, fused.rotary_dim, [value]"),
    "the next position": ("+ token * fused.cos_sin_stride", "+ (token + 1) * fused.cos_sin_stride"),
    "the next slot": ("slot = token % kBlockSize", "slot = (token + 1) % kBlockSize"),
    "the token left out of the sum": ("(before, largest) + weight", "(before, largest)"),
    "the token left out of the largest": (
        "fmaxf(attention.score(query, before), own)",
        "attention.score(query, before)",
    ),
    "the token's value left out": ("fmaf(weight, to_float(value[row]), x)", "x"),
    "the token seen twice": ("const Range before{0, token};", "const Range before{0, token + 1};"),
    "what is behind the range counts": (
        "token + kValueVector <= range.end",
        "token < range.end",
    ),
    "a pair of which half is lost": ("to_float(sum.x) + to_float(sum.y)", "2 * to_float(sum.x)"),
    "pairs that forget": (
        "pair_of(b.values[i], b.values[i + 1]), sum);",
        "pair_of(b.values[i], b.values[i + 1]), pair_of(T{}, T{}));",
    ),
    "no barrier before results of warps are read": (
        "= x;\n  __syncthreads();\n  float all",
        "= x;\n  float all",
    ),
    "no barrier before warps are added": (
        "in the memory of the logits, which are done with.\n    __syncthreads();",
        "in the memory of the logits, which are done with.",
    ),
    "keys in the order of values": (
        "key_index<T>(d, offset, p.block_size)",
        "value_index(d, offset, p.block_size)",
    ),
    "keys of one block": ("(d / kX * block_size + slot) * kX", "(d / kX + slot) * kX"),
    "values of one head": (
        "T* cached = values + head * p.head_stride",
        "T* cached = values",
    ),
}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    directory = tmp_path_factory.mktemp("seed_mutants")
    return Builder(directory, "seed_driver.cpp", KERNEL, SOURCES, ROOT / "csrc/seed")


def test_the_kernels_themselves_pass(builder: Builder) -> None:
    result = run(builder.build("none"))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_noticed(builder: Builder, name: str) -> None:
    assert_noticed(name, run(builder.build(name, *MUTANTS[name])))
