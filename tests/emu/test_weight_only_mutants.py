"""Bugs planted in the kernels of layers of 8 and 4 bits: the emulator must notice each of them."""

from tests.emu.planted_bugs import PlantedBugs

KERNEL = ("linear/weight_only_tile.cuh", "linear/weight_only_warpgroups.cuh", "e4m3.h")

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
    "the first group's scales for both": ("(has_two_groups() ? half : 0)", "0"),
    "scales of a group that is not there": ("(has_two_groups() ? half : 0)", "half"),
    "scales of the next step": (
        "min(next_k_ + own_group_k_",
        "min(next_k_ + Shape::kStep + own_group_k_",
    ),
    "scales beyond the last": (
        "min(next_k_ + own_group_k_, part_end_ - 1)",
        "(next_k_ + own_group_k_)",
    ),
    "what is beyond a part is multiplied": (
        "first < num_rows_ && is_in_part",
        "first < num_rows_",
    ),
    "parts copied as if they were one": ("      passed = part_end_ - next_k_;\n", ""),
    "weights of the first step": ("    next_fragment_ += Shape::kFragmentBytes;\n", ""),
    "weights of the first tile": ("next_fragment_ + tile * tile_bytes_", "next_fragment_"),
    "x of the first step": ("    next_x_ += passed;\n", ""),
    "rows of x copied from one place": ("next_x_ + from * x_stride_", "next_x_"),
    "chunks change places": (
        "offset(lane() % 8, lane() / 8)",
        "offset(lane() % 8, 3 - lane() / 8)",
    ),
    "rows of x in one place": ("x + g * 8 * Shape::kStepBytes", "x"),
    "a misaligned copy": (
        "next_fragment_ + tile * tile_bytes_",
        "next_fragment_ + 4 + tile * tile_bytes_",
    ),
    "copies into a stage that is multiplied": (
        "kStepsAhead = kStages_ - kStepsAtOnce;",
        "kStepsAhead = kStages_ - 1;",
    ),
    "weights change while warpgroups multiply them": (
        "ptx::wait_for_products<kGroups>();",
        "ptx::wait_for_products<kGroups + 1>();",
    ),
    "both halves in the same registers": ("weights_[kHalf]", "weights_[0]"),
    "the first half of a step twice": ("load_packed(step, kHalf)", "load_packed(step, 0)"),
    "weights of the first 16 in both products": (
        "Base::dequantise(packed, i, ",
        "Base::dequantise(packed, 0, ",
    ),
    "x of the first half in both": ("(kHalf * 2 + i)", "i"),
    "x of the first 16 in both products": ("(kHalf * 2 + i)", "kHalf * 2"),
}


class TestWeightOnlyLayers(PlantedBugs):
    driver = "weight_only_driver.cpp"
    kernel = KERNEL
    mutants = MUTANTS
