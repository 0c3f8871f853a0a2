"""Bugs planted in the kernels of experts in 8 and 4 bits: the emulator must notice each of them."""

from tests.emu.planted_bugs import PlantedBugs

KERNEL = (
    "experts/weight_only_experts.cuh",
    "experts/expert_linear.cuh",
    "linear/weight_only_tile.cuh",
)

# What is wrong: the text of the kernel that is replaced, and by what. What a tile of one layer does
# is altered in test_weight_only_mutants.py.
MUTANTS = {
    "weights of the first expert": (" + at.expert * p.packed_stride", ""),
    "scales of the first expert": (" + at.expert * p.scales_stride", ""),
    "scales as far apart as weights": (
        "at.expert * p.scales_stride",
        "at.expert * p.packed_stride",
    ),
    "weights of the first part": ("int64_t{part * part_steps + first}", "int64_t{first}"),
    "x of the first part": ("shared, at.part, 0, rows.rows", "shared, 0, 0, rows.rows"),
    "parts in one place": ("at.part * rows.part_stride", "0 * rows.part_stride"),
    "the first features in each tile": ("part_and_features / grid.num_parts}", "0}"),
    "rows that are not gathered": (": gathered_rows[position]", ": static_cast<int32_t>(position)"),
    "rows of a list that begins anew": ("gathered_rows[position]", "gathered_rows[position - row]"),
    "one row in each place": ("gathered_[first / kRowsAtOnce]", "gathered_[0]"),
    "rows gathered from another distance": ("i * kRowsAtOnce +", "i * kChunks +"),
    "rows of the next expert": ("min(int64_t{rows.offsets[at.expert + 1]}, ", "max(int64_t{0}, "),
}


class TestExperts(PlantedBugs):
    driver = "experts_driver.cpp"
    kernel = KERNEL
    mutants = MUTANTS
