"""Bugs planted in the attention kernel of prompts on warpgroups: the emulator must notice each."""

import pytest

from tests.emu.planted_bugs import PlantedBugs
from tests.emu.test_mutants import SOURCES

KERNEL = ("attention/prompt_warpgroup.cuh", "attention/warpgroup_columns.cuh")

pytestmark = pytest.mark.timeout(600)

# What is wrong: the text of the kernel that is replaced, and by what.
MUTANTS = {
    "blocks without work": ("  if (item.seq == kNoWork) return;\n", ""),
    "no wait for copies": ("    ptx::async_wait<1>();\n", ""),
    "a wait for the stage before": ("ptx::async_wait<1>();", "ptx::async_wait<2>();"),
    "copies that are not fenced": (
        "ptx::async_wait<1>();\n    ptx::fence_for_products();",
        "ptx::async_wait<1>();",
    ),
    "a stage too far ahead": (
        "  copy_next();\n  for (bool is_first",
        "  copy_next();\n  copy_next();\n  for (bool is_first",
    ),
    "three stages for four": (
        "(Shape::kStages - 1) * Shape::kStageBytes ? 0",
        "(Shape::kStages - 2) * Shape::kStageBytes ? 0",
    ),
    "a barrier that one warpgroup leaves out": ("      if (is_late) ptx::meet_block();\n", ""),
    "a barrier before values are taken": (
        "if (!is_late) ptx::meet_block();",
        "",
    ),
    "no barrier at the beginning": (
        "ptx::meet_block();  // queries are there",
        "// queries are there",
    ),
    "a tile that nobody copies": (
        "/ kWarpSize % Shape::kTilesOfStage;",
        "/ kWarpSize % (Shape::kTilesOfStage - 1);",
    ),
    "tiles of a stage in the order of the keys": (
        "copied.tile() + own * kMmaWarps",
        "copied.tile() + own",
    ),
    "blocks of the next stage": (
        "% kStagesOfLookup * 2 + half)",
        "% kStagesOfLookup * 2 + half ^ 2)",
    ),
    "blocks of the first warp's tiles": (
        "taken.tile_of(stage + lane / 2) + own * kMmaWarps",
        "taken.tile_of(stage + lane / 2)",
    ),
    "blocks of the stages before": (
        "!= stage / kStagesOfLookup) blocks",
        "!= stage / kStagesOfLookup && false) blocks",
    ),
    "stages that all lie in one place": (
        "? 0 : place_ + Shape::kStageBytes;",
        "? 0 : place_;",
    ),
    "a stage of tiles that is passed over": (
        "known < tile_ + kClasses * Shape::kTilesOfStage)",
        "known < tile_ + kClasses * (Shape::kTilesOfStage - 1))",
    ),
    "the first class again": ("within / kStagesOfClass +", "0 +"),
    "keys in the place of values": (
        "columns.add(tile, keys + Shape::kTileBytes)",
        "columns.add(tile, keys)",
    ),
    "the other warpgroup's queries": ("queries + group * Shape::kQueryBytes", "queries"),
    "the other warpgroup's columns": (
        "item.column + group * Shape::kGroupColumns",
        "item.column",
    ),
    "one memory for all totals": (
        "Shape::kGroups * Shape::kQueryBytes) + threadIdx.x",
        "Shape::kGroups * Shape::kQueryBytes)",
    ),
    "the second half of a head like the first": (
        "step / Shape::kStepsOfPiece * Shape::kPieceBytes +",
        "0 +",
    ),
    "values of half a head twice": (
        "describe_columns(values, Shape::kPieceBytes)",
        "describe_columns(values, 0)",
    ),
    "products that begin at the last scores": ("scores_[g][i] = 0.f;", "scores_[g][i] += 0.f;"),
    "products that nobody waits for": (
        "    ptx::wait_for_products<0>();\n    ptx::hold_sums(scores_);",
        "    ptx::hold_sums(scores_);",
    ),
    "values that are rescaled while products add": (
        "      if (t > 0) finish_products(weights);\n",
        "",
    ),
    "products of the last tile under way": (
        "      ptx::commit_products();\n    }\n    finish_products(weights);",
        "      ptx::commit_products();\n    }",
    ),
    "weights in registers that products still read": ("weights[t % 2]", "weights[0]"),
    "values of the next tile": (
        "of_values, t * kTileTokens",
        "of_values, (t + 1) % 4 * kTileTokens",
    ),
    "scores that are not scaled": ("scores_[g][i] *= factor_;", "scores_[g][i] *= 1.f;"),
    "scores whose tiles do not take turns": ("scores_[(g + 2) % (2 * kTiles)][i]", "scores_[g][i]"),
    "the future is seen": ("end_of_stage(tile) <= all_see_end_", "true"),
    "what is behind the window is seen": ("tile * kTileTokens >= all_see_from_ &&", "true &&"),
    "the window of the first column": (
        "all_see_from_ = bounds.first_key(p.sliding_window, last);",
        "all_see_from_ = bounds.first_key(p.sliding_window, first);",
    ),
    "a tile that only the last columns see": (
        "seen_end_ = exists ? bounds.end_of_keys(last) : 0;",
        "seen_end_ = exists ? bounds.end_of_keys(first) : 0;",
    ),
    "a tile that only the first columns see": (
        "seen_from_ = bounds.first_key(p.sliding_window, first);",
        "seen_from_ = bounds.first_key(p.sliding_window, last) + kTileTokens;",
    ),
    "soft caps are forgotten": ("is_plain_ = p.soft_cap == 0.f && ", "is_plain_ = "),
    "slopes are forgotten": (
        "p.soft_cap == 0.f && p.alibi_slopes == nullptr;",
        "p.soft_cap == 0.f;",
    ),
    "the largest of three in four lanes": (
        "flipped < 4; flipped *= 2) {",
        "flipped < 2; flipped *= 2) {",
    ),
    "a maximum of one column": (
        "largest_[t][0] > max_[0] || largest_[t][1] > max_[1]",
        "largest_[t][0] > max_[0]",
    ),
    "sums that are not rescaled": ("sum_[j][1] *= rescaling_[j];", ""),
    "values that are not rescaled": ("      has_values_ = true;\n", ""),
    "values that the other column's factor rescales": (
        "acc_[g][i] *= rescaling_[i / 2];",
        "acc_[g][i] *= rescaling_[i % 2];",
    ),
    "sums of another split": (
        "sum_[i / 2][i % 2] += w[half][i];",
        "sum_[i / 2][half] += w[half][i];",
    ),
    "sums that are folded in another order": (
        "for (int flipped = 1; flipped < 4; flipped *= 2)\n      sum +=",
        "for (int flipped = 2; flipped > 0; flipped /= 2)\n      sum +=",
    ),
    "columns of an operand change places": ("weights[half * 2 + j]", "weights[half * 2 + 1 - j]"),
    "tokens of an operand change places": ("weights[half * 2 + j]", "weights[(1 - half) * 2 + j]"),
    "classes that forget": ("is_last ? 0.f : merged[i]", "0.f"),
    "states of classes that add up": ("      state_[j] = {};\n", ""),
    "partitions that forget": ("has_total_ ? held :", "false ? held :"),
    "no new beginning after a class": (
        "    has_total_ |= is_last;\n    reset();",
        "    has_total_ |= is_last;",
    ),
    "the last class apart": ("Stages::kClasses - 1, merges", "Stages::kClasses - 2, merges"),
    "a prefix's partitions apart": ("item.slot < 0 || item.is_prefix != 0", "item.slot < 0"),
    "partitions in one slot": ("partition - item.partition_begin) * Shape", "0) * Shape"),
    "partials of other rows": ("acc + 8 * kHeadSize", "acc + 4 * kHeadSize"),
    "results of the other column": (
        "column_ + j * 8;\n      if",
        "column_ + (1 - j) * 8;\n      if",
    ),
    "not normalised": ("values[i] * factor / total.sum", "values[i] * factor"),
    "another column's sink": (
        "bounds_.head(item_.kv_head, column));\n#pragma unroll 1",
        "bounds_.head(item_.kv_head, column_));\n#pragma unroll 1",
    ),
    "a query of another column": (
        "p_.query, item_.kv_head, column)",
        "p_.query, item_.kv_head, min(first, bounds_.num_columns - 1))",
    ),
    "queries whose chunks lie as they are": (
        "queries_ + Shape::offset(row, chunk % 8)",
        "queries_ + row * 128 + chunk % 8 * 16",
    ),
}


class TestPromptsOnWarpgroups(PlantedBugs):
    driver = "prompt_warpgroup_driver.cpp"
    kernel = KERNEL
    sources = SOURCES
    mutants = MUTANTS
