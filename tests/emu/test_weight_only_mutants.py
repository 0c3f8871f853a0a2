"""Bugs planted in the kernels of layers of 8 and 4 bits: the emulator must notice each of them."""

from tests.emu.planted_bugs import PlantedBugs

KERNEL = ("linear/weight_only_tile.cuh", "e4m3.h")

# What is wrong: the text of the kernel that is replaced, and by what. What linear.cuh has is
# altered in test_linear_mutants.py.
MUTANTS = {
    "pairs of float8 change places": ("scaled(pairs[0], ", "scaled(pairs[1], "),
    "float8 of the other feature": ("widen_e4m3(words[feature]", "widen_e4m3(words[1 - feature]"),
    "another feature's scale": ("scales[feature].x", "scales[0].x"),
    "scales of 16 bits": ("halves[1]) * scale)", "halves[1]) * to_float(from_float<T>(scale)))"),
    "float8 that is scaled in float16": (
        "to_float(halves[0]) * scale)",
        "to_float(from_float<f16>(to_float(halves[0]) * scale)))",
    ),
    "float8 without signs": ("(bytes & 0x80008000) | magnitudes >> 1", "magnitudes >> 1"),
    "float8 in another order": ("0x1404", "0x0414"),
    "float8 of another bias": ("0x5c005c00", "0x5c005800"),
    "no zeros": ("(integer - scale.y)", "(integer - 0x1p23f)"),
    "another feature's zeros": ("(integer - scale.y)", "(integer - scales[0].y)"),
    "integers of 8 bits in another order": ("pair % 2 * 2 + e", "pair % 2 + e * 2"),
    "integers of 4 bits in another order": ("halves[e]", "halves[1 - e]"),
    "the upper half of a byte left in": ("words[0] & 0x0f0f0f0f", "words[0]"),
    "integers of the other feature": ("words[pair / 2 % kWords]", "words[pair % kWords]"),
    "bits of a float without an integer's end": ("0x3104 + byte", "0x3100 + byte"),
    "operands change places": ("a[pair % 2 * 2 + pair / 2]", "a[pair]"),
    "blocks of 16 change places": (
        "words[0][0] = four.x, words[0][1] = four.y, words[1][0] = four.z, words[1][1] = four.w",
        "words[1][0] = four.x, words[1][1] = four.y, words[0][0] = four.z, words[0][1] = four.w",
    ),
    "the first group's scales for both": ("(log2_group_ == 5 ? half : 0)", "0"),
    "scales of a group that is not there": ("(log2_group_ == 5 ? half : 0)", "half"),
    "scales of the next step": ("min(next_k_ + which", "min(next_k_ + Shape::kStep + which"),
    "scales beyond the last": (
        "min(next_k_ + which * 32, part_end_ - 1)",
        "(next_k_ + which * 32)",
    ),
    "what is beyond a part is multiplied": (
        "row < num_rows_ && k < part_end_",
        "row < num_rows_",
    ),
    "parts copied as if they were one": ("    next_k_ = part_end_;\n", ""),
    "weights of the first step": ("num_steps_ + step)", "num_steps_)"),
    "chunks change places": ("half * 4 + lane_ / 8", "half * 4 + 3 - lane_ / 8"),
    "rows of x in one place": ("place + g * 8 * Shape::kStepBytes", "place"),
    "a misaligned copy": (
        "Shape::kFragmentBytes + at,\n          tile",
        "Shape::kFragmentBytes + at + 4,\n          tile",
    ),
}


class TestWeightOnlyLayers(PlantedBugs):
    driver = "weight_only_driver.cpp"
    kernel = KERNEL
    mutants = MUTANTS
