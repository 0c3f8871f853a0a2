"""Bugs planted in attention of shared partitions: the emulator must notice each of them."""

import pytest

from tests.emu.planted_bugs import PlantedBugs

KERNEL = (
    *("attention/shared.cuh", "attention/mma.cuh"),
    *("attention/shared_warpgroup.cuh", "attention/warpgroup_columns.cuh"),
)
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
    "another head's query": ("head(kv_head, column) * rows", "kv_head * group * rows"),
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
    "results in the first slot": (
        "{\n    columns.store_total(partials, int64_t{item.slot} * Shape::kColumns);\n  });\n}",
        "{\n    columns.store_total(partials, 0);\n  });\n}",
    ),
    "results of warpgroups in the first slot": (
        "columns.store_total(partials, int64_t{item.slot} * Shape::kColumns);\n  });\n#else",
        "columns.store_total(partials, 0);\n  });\n#else",
    ),
    "warpgroups that store nothing": ("if (seen_end_ == 0) return;", "if (seen_end_ != 0) return;"),
    "queries of warpgroups of one column": (
        "p_.query, item_.kv_head, column)",
        "p_.query, item_.kv_head, min(first, bounds_.num_columns - 1))",
    ),
    "nothing to begin with": ("&& item.num_shared > 0;", "&& false;"),
    "only the first slots": ("first < num_slots_; first", "first < 1; first"),
    "the last slot left out": (
        "num_slots_ = item.num_shared;",
        "num_slots_ = item.num_shared - 1;",
    ),
    "the first slot twice": (
        "int64_t{slot} * columns_of_slot_",
        "int64_t{max(slot - 1, 0)} * columns_of_slot_",
    ),
    "no barrier before factors are read": (
        "      __syncthreads();\n#pragma unroll\n",
        "#pragma unroll\n",
    ),
    "no barrier before factors are those of others": (
        "      __syncthreads();  // all have read before other factors, "
        "or values of warps, are shown\n",
        "",
    ),
    "the first slots again": ("load(partials, first + kAtOnce);", "load(partials, first);"),
    "slots that nobody loads": (
        "      if (first + kAtOnce < num_slots_) load(partials, first + kAtOnce);\n",
        "",
    ),
    "values of one slot": ("part_[i][e], factors", "part_[0][e], factors"),
    "a state that forgets": (
        "= total.merge(max_[i], sum_[i]);",
        "= ColumnState{}.merge(max_[i], sum_[i]);",
    ),
    "another column's factors": ("kColumns + element / kHeadSize]", "kColumns]"),
}


class TestSharing(PlantedBugs):
    driver = "sharing_driver.cpp"
    kernel = KERNEL
    sources = SOURCES
    mutants = MUTANTS
