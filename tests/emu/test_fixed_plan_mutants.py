"""Bugs planted in plans of captured mixed steps: what plays their graphs must notice each."""

import pytest

from tests.emu.planted_bugs import PlantedBugs

pytestmark = pytest.mark.timeout(600)

# What is wrong: the text of the plan that is replaced, and by what.
MUTANTS = {
    "memory of the step that came": (
        "memory.begin(bytes_of(most), stream)",
        "memory.begin(bytes_of({work.num_items, work.num_merges}), stream)",
    ),
    "blocks without work that have some": (
        "AttentionItem{kNoWork, 0, 0, 0, 0",
        "AttentionItem{0, 0, 0, 0, 1",
    ),
    "merges without work that have a sequence": (
        "AttentionMerge{kNoWork, 0, 0, 0, 0}",
        "AttentionMerge{0, 0, 0, 0, 1}",
    ),
    "a kind without columns": ("{each->columns, ", "{0, "),
    "a kind without merges": (", int64_t{each->num_merges}}", "}"),
    "a kind without prompts": ("{&few(), &many()}", "{&few()}"),
    "a kind without what is shared": ("sizes{int64_t{shared().num_items}}", "sizes{0}"),
    "prompts in both launches": ("may_be_many ? least_of_many(p) : INT64_MAX", "INT64_MAX"),
    "prompts in no launch": ("if (may_be_many) plan(", "if (false) plan("),
    "rows that all have many columns in both launches": ("if (!are_many) plan(", "plan("),
    "both widths in one memory": ("plan(rest, few_[is_wide_]);", "plan(rest, few_[0]);"),
    "shared work of the step before": (
        "} else {\n    shared_.send(shared, num_shared, num_shared, p, stream);\n  }",
        "}",
    ),
    "work that begins behind nothing shared": ("limits, shared.num_shared);", "limits, {});"),
    "any number of rows": ('check_range("launch", most', 'if (false) check_range("launch", most'),
    "a sequence of any length": ("seq_lens[i], 0, max_seq_len + 1", "seq_lens[i], 0, INT32_MAX"),
    "a sequence of any rows": ("p.max_query_len + 1", "INT32_MAX"),
    "tiles that are all full": (
        "(num_columns + num_seqs * (limits.columns - 1)) / limits.columns",
        "num_columns / limits.columns",
    ),
    "tiles that are never cut": ("{num_tiles + limits.blocks_at_once, ", "{num_tiles, "),
    "a launch of half its size": ("while (size < num_items)", "while (2 * size < num_items)"),
    "a launch of more blocks than there can be": (
        "{std::min(num_items, bounds.num_items)",
        "{num_items",
    ),
    "memory that goes before what is sent there has come": (
        "Workspace memory;\n    UploadBuffer buffer;",
        "UploadBuffer buffer;\n    Workspace memory;",
    ),
    "an eighth of the merges always": ("num_merges <= few ? few", "true ? few"),
}


class TestFixedPlan(PlantedBugs):
    driver = "fixed_plan_driver.cpp"
    kernel = ("attention/device_plan.cu", "attention/device_plan.h", "attention/plan.cu")
    sources = ("core/check.cpp", "cuda/attention/sharing.cu")
    mutants = MUTANTS
