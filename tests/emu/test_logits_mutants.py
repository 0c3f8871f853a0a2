"""Bugs planted in what CUDA does to logits: the emulator must notice each of them."""

from tests.emu.planted_bugs import PlantedBugs

KERNEL = ("logits/logit_rules.cu", "logits/top_logprobs.cu", "logits/row_select.cuh")
SOURCES = (
    "core/check.cpp",
    "cpu/logit_rules.cpp",
    "cpu/logprobs.cpp",
    "cpu/isa_scalar.cpp",
    "cpu/linear_scalar.cpp",
    "cpu/linear_int8_scalar.cpp",
    "cpu/thread_pool.cpp",
)

# What is wrong: the text of the kernels that is replaced, and by what.
MUTANTS = {
    "no barrier before tokens are counted": (
        "uses[i] = 0;\n  __syncthreads();",
        "uses[i] = 0;",
    ),
    "no barrier before penalties": (
        "  __syncthreads();\n  float* logits = p.logits",
        "  float* logits = p.logits",
    ),
    "the prompt counts as output": ("if (i < num_prompt_tokens)", "if (false)"),
    "the output counts as prompt": ("if (i < num_prompt_tokens)", "if (true)"),
    "a slice's first token is another's": ("at < 0 ||", "at <= 0 ||"),
    "one slice only": ("blockIdx.x % slices * kSlice", "int64_t{0} * kSlice"),
    "mask bits from the other end": (">> token % kWarpSize & 1", ">> (31 - token % kWarpSize) & 1"),
    "no barrier before warps are added up": (
        "= own;\n  __syncthreads();\n  uint64_t total",
        "= own;\n  uint64_t total",
    ),
    "no barrier between two sums": (
        "(own), flipped);\n  __syncthreads();  // an earlier result has been read\n",
        "(own), flipped);\n",
    ),
    "a warp left out of the sum": (
        "warp < kRowWarps; ++warp) total +=",
        "warp < kRowWarps - 1; ++warp) total +=",
    ),
    "no barrier before tokens are gathered": (
        "num_kept[0] = 0;\n  __syncthreads();",
        "num_kept[0] = 0;",
    ),
    "no barrier before they are put in order": (
        "token_ids[slot] = i;\n  }\n  __syncthreads();",
        "token_ids[slot] = i;\n  }",
    ),
    "equals in any order": ("&& token_ids[j] < token_ids[i]", "&& j < i"),
    "equals by the higher id": ("&& token_ids[j] < token_ids[i]", "&& token_ids[j] > token_ids[i]"),
    "a rank from zero": ("static_cast<int64_t>(larger) + 1", "static_cast<int64_t>(larger)"),
    "zeros of either sign apart": ("__float_as_uint(x + 0.f)", "__float_as_uint(x)"),
    "no barrier before digits are counted": (
        "amounts.clear();\n    __syncthreads();",
        "amounts.clear();",
    ),
    "no barrier before the digit is looked for": (
        "    __syncthreads();\n    if (threadIdx.x < kWarpSize) {",
        "    if (threadIdx.x < kWarpSize) {",
    ),
    "no barrier before the digit is known": (
        "    __syncthreads();\n    if (shared_digit[0] == kNumDigits)",
        "    if (shared_digit[0] == kNumDigits)",
    ),
    "digits that do not narrow down": ("((key ^ known) & known_mask) == 0", "true"),
    "each lane adds for all": ("|| lane != first", ""),
    "those without a digit counted": ("digit == kNoDigit ||", ""),
    "ties not counted": ("if (wanted == present)", "if (true)"),
    "another tie": ("++before == count", "before++ == count"),
    "no barrier before ties are added up": (
        "ties[threadIdx.x] = own;\n  __syncthreads();",
        "ties[threadIdx.x] = own;",
    ),
    "no barrier before the tie is known": (
        "  __syncthreads();\n  return found[0];",
        "  return found[0];",
    ),
    "no barrier before the largest is known": (
        "indices[threadIdx.x / kWarpSize] = best.index;\n  }\n  __syncthreads();",
        "indices[threadIdx.x / kWarpSize] = best.index;\n  }",
    ),
}


class TestLogits(PlantedBugs):
    driver = "logits_driver.cpp"
    kernel = KERNEL
    sources = SOURCES
    mutants = MUTANTS
