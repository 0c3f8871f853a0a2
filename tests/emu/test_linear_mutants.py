"""Bugs planted in the linear layer's kernel: the emulator must notice each of them."""

from tests.emu.planted_bugs import PlantedBugs

KERNEL = (
    *("linear/linear.cuh", "linear/tile.cuh", "linear/merge.cuh"),
    *("linear/sections.h", "linear/split_memory.h", "linear/warpgroup_tile.cuh"),
)

# What is wrong: the text of the kernel that is replaced, and by what. Not among them is what keeps
# blocks that run at once apart (fences, and the barriers about the count of arrivals): the emulator
# runs blocks one after the other.
MUTANTS = {
    "no barrier before a step is taken": (
        "__syncthreads();  // the steps are there, and what the next ones overwrite has been read",
        "",
    ),
    "no barrier before the result takes the stages' place": (
        "__syncthreads();  // all are done with the stages",
        "",
    ),
    "no barrier before the next tile takes the result's place": (
        "__syncthreads();  // the result has been read: the next tile's stages take its place",
        "",
    ),
    "no barrier before the result is written": (
        "__syncthreads();  // the result is there",
        "",
    ),
    "a barrier that half of the block skips": (
        "__syncthreads();  // all are done with the stages",
        "if (threadIdx.x < 64) __syncthreads();",
    ),
    "too few copies waited for": (
        "ptx::async_wait<Shape::kStepsAhead - kCount>();",
        "ptx::async_wait<Shape::kStepsAhead>();",
    ),
    "copies into the stage in use": (
        "const int next = step + Shape::kStepsAhead;",
        "const int next = step + Shape::kStepsAhead + 1;",
    ),
    "products begun before the step is there": (
        "  ptx::async_wait<Shape::kStepsAhead - kCount>();",
        "  tile.begin(step, sums);\n  ptx::async_wait<Shape::kStepsAhead - kCount>();",
    ),
    "copies that are not fenced for products of warpgroups": (
        "{ ptx::fence_for_products(); }",
        "{}",
    ),
    "products of a section not waited for": (
        "if constexpr (kInFlight > 0) ptx::wait_for_products<0>();",
        "",
    ),
    "one more step of products in flight": (
        "ptx::wait_for_products<Shape::kInFlight>();",
        "ptx::wait_for_products<Shape::kInFlight + 1>();",
    ),
    "copies into a stage whose products are in flight": (
        "kStepsAhead = kStages_ - 1 - kInFlight_;",
        "kStepsAhead = kStages_ - 1;",
    ),
    "warpgroups that take the same features": (
        "stage + group_ * kGroupFeatures",
        "stage + 0 * kGroupFeatures",
    ),
    "the same elements of x in each product": (
        "ptx::matrix_behind(x, k)",
        "ptx::matrix_behind(x, 0)",
    ),
    "a misaligned copy": (
        "ptx::async_copy_16(place, source,",
        "ptx::async_copy_16(place, source + 1,",
    ),
    "what is beyond a row is read": ("exists && num_left > 0", "exists"),
    "what is beyond an unaligned row is read": ("exists && i < num_left", "exists"),
    "what is beyond the last row is written": ("if (row + i / kPacks >= p.num_rows) break;", ""),
    "chunks change places": (
        "load_matrices(a, weight + Shape::offset(f * 16 + lane_ % 16, chunk + lane_ / 16))",
        "load_matrices(a, weight + Shape::offset(f * 16 + lane_ % 16, chunk + 1 - lane_ / 16))",
    ),
    "rows not where chunks were swapped": ("(chunk ^ (row & 7)) * 16;", "(chunk ^ (row & 3)) * 8;"),
    "rows change places": (
        "place[0] = four.x;\n  place[Shape::kResultStride] = four.y;",
        "place[0] = four.y;\n  place[Shape::kResultStride] = four.x;",
    ),
    "sections not begun at zero": (
        "      LinearSums<Shape> sums;\n      add",
        "      static thread_local LinearSums<Shape> sums;\n      add",
    ),
    "a section is the sum so far": ("total.add(sums);", "total = sums;"),
    "sections added in another order": (
        "&from[(first + j) * kSection",
        "&from[(num_sections - 1 - first - j) * kSection",
    ),
    "a part that has the one before it": (
        "    total = {};\n    add",
        "    if (grid.is_split) total = {};\n    add",
    ),
    "a part that has the one before it, added by the last block": (
        "        sum = {};\n",
        "",
    ),
    "parts copied as if they were one": (
        "      passed = part_end_ - next_k_;\n",
        "",
    ),
    "the same elements of x in each step": ("    x_.next += passed;\n", ""),
    "rows copied from where others lie": (": first) * from.stride;", ": 0) * from.stride;"),
    "parts added one after the other": (
        "for (; part % 2 == 1; part /= 2, ++level) {",
        "if (part > 0) {",
    ),
    "parts added one after the other by the last block": (
        "if (part / 2 % 2 == 0) return of_two = total;",
        "return of_one = total;",
    ),
    "sums that wait in one place": ("part /= 2, ++level)", "part /= 2)"),
    "sections of another length where tiles are whole": (
        "min(step + section_steps, part_end)",
        "min(step + (end - step > section_steps ? 2 : 1) * section_steps, part_end)",
    ),
    "sections added before all have arrived": (
        "before == num_sections - 1",
        "before == num_sections - 2",
    ),
    "sections in one place": (
        "int64_t{tile} * num_sections + section, results",
        "int64_t{tile} * num_sections, results",
    ),
    "the count of arrivals not reset": (
        "if (is_last[0] != 0) results.arrivals[tile] = 0;  // for the next launch",
        "",
    ),
    "no bias": (" + bias[j];", ";"),
    "sums of float32 in another order": (
        "for (int k = 0; k < 4; ++k)",
        "for (int k = Shape::kRows > 8 ? 0 : 3; k < 4 && k >= 0; k += Shape::kRows > 8 ? 1 : -1)",
    ),
}


class TestLinear(PlantedBugs):
    driver = "linear_driver.cpp"
    kernel = KERNEL
    mutants = MUTANTS
