"""Bugs planted in the kernels that the field began with: the emulator must notice each of them."""

from tests.emu.planted_bugs import ROOT, PlantedBugs

KERNEL = (
    "fused_decode.cu",
    "cache_v1.cu",
    "attention_v1.cuh",
    "layout_v1.cuh",
    "packed.cuh",
)

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


class TestSeedKernels(PlantedBugs):
    driver = "seed_driver.cpp"
    kernel = KERNEL
    folder = ROOT / "csrc/seed"
    mutants = MUTANTS
