"""Bugs planted in the sampler of CUDA: the emulator must notice each of them."""

from tests.emu.planted_bugs import PlantedBugs

KERNEL = (
    "logits/sampler.cu",
    "logits/sample_filter.cuh",
    "logits/sample_parts.cuh",
    "logits/sample_row.cuh",
    "logits/row_select.cuh",
)
SOURCES = (
    "core/check.cpp",
    "cpu/sampler.cpp",
    "cpu/isa_scalar.cpp",
    "cpu/linear_scalar.cpp",
    "cpu/linear_int8_scalar.cpp",
    "cpu/thread_pool.cpp",
)

# What is wrong: the text of the kernels that is replaced, and by what.
MUTANTS = {
    "parts that overlap": (
        "min(begin + work.part_size, size)",
        "min(begin + work.part_size + 4, size)",
    ),
    "parts with a gap": (
        "min(begin + work.part_size, size)",
        "min(begin + work.part_size, size - 1)",
    ),
    "a step too few at once": (
        "begin += kAhead * kStepTokens",
        "begin += (kAhead - 1) * kStepTokens",
    ),
    "a step too many at once": (
        "begin += kAhead * kStepTokens",
        "begin += (kAhead + 1) * kStepTokens",
    ),
    "a load for any address": ("is_aligned(part.logits)", "true"),
    "tokens beyond the row": (
        "begin + i < part.end ? part.logits[begin + i] : -INFINITY",
        "part.logits[begin + i]",
    ),
    "the first block goes on": ("before == gridDim.x - 1", "before == 0"),
    "any block goes on": ("before == gridDim.x - 1", "true"),
    "arrivals that stay": ("if (is_last[0] != 0) work.arrivals[blockIdx.y] = 0;", ""),
    "no barrier before the last is known": (
        "// for the next kernel\n  }\n  __syncthreads();",
        "// for the next kernel\n  }",
    ),
    "one part in the merge": ("i < gridDim.x; i += kRowThreads", "i < 1; i += kRowThreads"),
    "a part left out of the merge": (
        "i < gridDim.x; i += kRowThreads",
        "i + 1 < gridDim.x; i += kRowThreads",
    ),
    "partials of another row": ("int64_t{blockIdx.y} * gridDim.x", "int64_t{0} * gridDim.x"),
    "no carry": ("if (before + low_word < before) ++high_word;", ""),
    "the high word left out": ("if (high_word != 0) atomicAdd(high, high_word);", ""),
    "bins of the call before": (
        "work.bins[blockIdx.y].clear",
        "if (false) work.bins[blockIdx.y].clear",
    ),
    "candidates of the call before": ("work.num_candidates[blockIdx.y] = 0;", ""),
    "no barrier before bins are counted": (
        "kRowThreads);\n  __syncthreads();\n  const Part part",
        "kRowThreads);\n  const Part part",
    ),
    "no barrier before bins leave": ("amounts[0]);\n  __syncthreads();", "amounts[0]);"),
    "the boundary's bin with both filters": ("is_both ? 0 : first + i;", "first + i;"),
    "what lies before counts twice": ("is_both ? target : target - before", "target"),
    "no barrier before candidates are counted": (
        "num_own[0] = 0;\n  __syncthreads();",
        "num_own[0] = 0;",
    ),
    "no barrier before candidates have a place": (
        "num_own[0]);\n  __syncthreads();",
        "num_own[0]);",
    ),
    "candidates in the place of others": ("all[place[0] + i] = list[i]", "all[i] = list[i]"),
    "more candidates than there is room for": ("num_candidates <= kMaxCandidates", "true"),
    "no barrier in the sort": ("distance /= 2) {\n      __syncthreads();", "distance /= 2) {"),
    "NaN is taken": ("return !(mean < INFINITY);", "return mean == INFINITY;"),
    "the last of equals in a pack": (
        "for (int i = kPackTokens - 2; i >= 0; --i)",
        "for (int i = 0; i < 0; ++i)",
    ),
    "the cut's equals all kept": (
        "if (!cut.keeps(x[i], begin + i)) continue;\n      const float score",
        "if (x[i] < cut.x) continue;\n      const float score",
    ),
}


class TestSampler(PlantedBugs):
    driver = "sampler_driver.cpp"
    kernel = KERNEL
    sources = SOURCES
    mutants = MUTANTS
