"""Bugs planted in the attention kernel of prompts: the emulator must notice each of them."""

import pytest

from tests.emu.planted_bugs import PlantedBugs
from tests.emu.test_mutants import SOURCES

KERNEL = ("attention/prompt.cuh", "attention/mma_copies.cuh", "attention/mma_tile.cuh")

pytestmark = pytest.mark.timeout(600)

# What is wrong: the text of the kernel that is replaced, and by what.
MUTANTS = {
    "blocks without work": ("  if (item.seq == kNoWork) return;\n", ""),
    "no barrier before a stage is read": ("__syncthreads();  // the stage is filled", "//"),
    "no wait for copies": ("ptx::async_wait<0>();\n        __syncthreads()", "__syncthreads()"),
    "a copy into the stage that is read": (
        "tiles.copy(next, end, Shape::kStageBytes - place);",
        "tiles.copy(next, end, place);",
    ),
    "stages that do not take turns": ("        place = Shape::kStageBytes - place;\n", ""),
    "half of a tile that nobody copies": (
        "half < 2 * Shape::kTilesOfStage;",
        "half < 2 * Shape::kTilesOfStage - 1;",
    ),
    "rows of the first half twice": ("copy_row(half, row, token", "copy_row(0, row, token"),
    "values of another tile": (
        "take(tile, keys, keys + kTileBytes);",
        "take(tile, keys, keys + 3 * kTileBytes);",
    ),
    "of two tiles the values of the other": (
        "{keys + kTileBytes, other_keys + kTileBytes}",
        "{other_keys + kTileBytes, keys + kTileBytes}",
    ),
    "two tiles of which one is hidden in part": (
        "is_seen_by_all(tile) && is_seen_by_all(other)",
        "is_seen_by_all(tile)",
    ),
    "two tiles whose scores are more than products": ("if (is_plain_ && ", "if ("),
    "a maximum that moves in two tiles": ("if (__any_sync(kFullMask, moves)) {", "if (false) {"),
    "two tiles whose scores are not scaled": ("++g) scale(g, scores[t][g]);", "++g) {}"),
    "the second of two tiles left out": ("i < 2; ++i, tile = other", "i < 1; ++i, tile = other"),
    "tiles that are taken twice": (
        "within % kStagesOfClass * kClasses * Shape::kTilesOfStage;",
        "within % kStagesOfClass * Shape::kTilesOfStage;",
    ),
    "the first class again": ("+ within / kStagesOfClass +", "+"),
    "tiles of a stage in the order of the keys": ("i * Tiles::kClasses;", "i;"),
    "a stage of tiles that is passed over": (
        "known < tile + kClasses * Shape::kTilesOfStage;",
        "known < tile + kClasses * (Shape::kTilesOfStage - 1);",
    ),
    "a tile that only the last columns see": (
        "(bounds.end_of_keys(last) + kTileTokens - 1) / kTileTokens",
        "bounds.end_of_keys(last) / kTileTokens",
    ),
    "the future is seen": ("token + kTileTokens <= all_see_end_", "token <= all_see_end_"),
    "what is behind the window is seen": ("token >= all_see_from_ &&", "true &&"),
    "the window of the first column": (
        "all_see_from_ = bounds.first_key(p.sliding_window, last);",
        "all_see_from_ = bounds.first_key(p.sliding_window, column_);",
    ),
    "the last class apart": ("number == kMmaWarps - 1;", "number == kMmaWarps - 2;"),
    "classes that forget": ("number == 0 ? float4", "number <= 1 ? float4"),
    "partitions that forget": ("has_total_ ? total_[at]", "false ? total_[at]"),
    "partitions that add up classes": ("        state = {};\n", ""),
    "no new beginning after a class": ("    Base::reset();\n", ""),
    "columns change places": (
        "return g * 8 + lane_ % 4 * 2 + j;",
        "return g * 8 + lane_ % 4 * 2 + 1 - j;",
    ),
    "factors change places": (
        "merge_values(before.x, after.x, factors[0])",
        "merge_values(before.x, after.x, factors[1])",
    ),
    "one memory for both": (
        "total_(held + Shape::kFours * Shape::kThreads + threadIdx.x)",
        "total_(held + threadIdx.x)",
    ),
    "a prefix's partitions apart": ("item.slot < 0 || item.is_prefix != 0", "item.slot < 0"),
    "partitions in one slot": ("partition - item.partition_begin) * Shape", "0) * Shape"),
    "not normalised": ("values[half] * factor / total.sum", "values[half] * factor"),
    "a sink that leaves values as they were": ("values[half] * factor", "values[half]"),
    "another column's sink": (
        "bounds_.head(item_.kv_head, column)",
        "bounds_.head(item_.kv_head, column_)",
    ),
    "another half's elements": ("value_element(lane_, half)", "value_element(lane_, 1 - half)"),
}


class TestPrompts(PlantedBugs):
    driver = "prompt_driver.cpp"
    kernel = KERNEL
    sources = SOURCES
    mutants = MUTANTS
