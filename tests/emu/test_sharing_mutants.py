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
}


class TestSharing(PlantedBugs):
    driver = "sharing_driver.cpp"
    kernel = KERNEL
    sources = SOURCES
    mutants = MUTANTS
