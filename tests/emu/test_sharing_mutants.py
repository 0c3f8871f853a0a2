"""Bugs planted in attention of shared partitions: the emulator must notice each of them."""

import pytest

from tests.emu.planted_bugs import PlantedBugs

KERNEL = ("attention/shared.cuh", "attention/mma.cuh")
SOURCES = (
    "core/check.cpp",
    "cuda/attention/plan.cu",
    "cuda/attention/sharing.cu",
)

pytestmark = pytest.mark.timeout(600)

# What is wrong: the text of the kernels that is replaced, and by what.
MUTANTS = {
    "queries of sequences beside each other": (
        "query_start_loc[seqs[column / group]] * rows",
        "(query_start_loc[seqs[0]] + column / group) * rows",
    ),
    "another head's query": ("kv_head * group + column % group) * rows", "kv_head * group) * rows"),
    "the position of the first sequence": (
        "seq_lens[seqs[column / group]] - 1",
        "seq_lens[seqs[0]] - 1",
    ),
    "the position behind the token": (
        "seq_lens[seqs[column / group]] - 1",
        "seq_lens[seqs[column / group]]",
    ),
    "members of the first block": ("members + item.first_member", "members"),
    "a column too few": ("item.num_members * group)", "item.num_members * group - 1)"),
    "the last tile left out": (
        "item.partition_end * kPartitionTokens)",
        "item.partition_end * kPartitionTokens - 1)",
    ),
    "results in the first slot": ("int64_t{item.slot} * Shape::kColumns);\n  });", "0);\n  });"),
    "nothing to begin with": ("if (item.num_shared > 0) {", "if (false) {"),
    "only the first slot": ("first < item.num_shared; first", "first < 1; first"),
    "the last slot left out": ("item.num_shared - first);", "item.num_shared - first - 1);"),
    "the first slot twice": (
        "first_row + int64_t{first} * item.shared_columns",
        "first_row + int64_t{first - 1} * item.shared_columns",
    ),
    "no barrier before factors are read": (
        "    __syncthreads();\n    const float* part",
        "    const float* part",
    ),
    "no barrier before factors are those of others": (
        "    __syncthreads();  // all have read before the factors of others are shown\n",
        "",
    ),
    "values of one slot": ("      part += int64_t{item.shared_columns} * kHeadSize;\n", ""),
    "a state that forgets": (
        "total = {partials.max[first_row + thread], partials.sum[first_row + thread]};",
        "total = {};",
    ),
    "another column's factors": ("kColumns + element / kHeadSize]", "kColumns]"),
}


class TestSharing(PlantedBugs):
    driver = "sharing_driver.cpp"
    kernel = KERNEL
    sources = SOURCES
    mutants = MUTANTS
