"""Bugs planted in the kernel of attention over latent rows: the emulator must notice each."""

import pytest

from tests.emu.planted_bugs import PlantedBugs
from tests.emu.test_mutants import SOURCES

KERNEL = ("attention/latent.cuh", "attention/latent_tile.cuh")

pytestmark = pytest.mark.timeout(600)

# What is wrong: the text of the kernel that is replaced, and by what.
MUTANTS = {
    "blocks without work": ("  if (item.seq == kNoWork) return;\n", ""),
    "no barrier before a tile is read": ("__syncthreads();  // the tile is there", "//"),
    "no wait for copies": ("ptx::async_wait<kStages - 2>();", ""),
    "a wait for all copies but the last two": (
        "ptx::async_wait<kStages - 2>();",
        "ptx::async_wait<kStages - 1>();",
    ),
    "no barrier before scores are read": ("__syncthreads();  // scores are there", ""),
    "a barrier that half of the block skips": (
        "__syncthreads();  // scores are there",
        "if (threadIdx.x < 64) __syncthreads();",
    ),
    "no barrier before weights are read": ("__syncthreads();  // weights are there", ""),
    "no barrier before factors are read": ("__syncthreads();  // factors are there", ""),
    "no barrier before factors are overwritten": (
        "__syncthreads();  // the last factors have been read",
        "",
    ),
    "no barrier before totals are read": ("__syncthreads();  // totals are there", ""),
    "a copy into the stage that is read": (
        "copy(tile + kStages - 1, free_stage);",
        "copy(tile + kStages - 1, stage);",
    ),
    "stages that do not take turns": ("      free_stage = stage;\n", ""),
    "keys behind the last": ("own >= keys_begin_ && own < keys_end_", "own >= keys_begin_"),
    "the first slot of a block": ("slot * p_.key_cache.token_stride", "0"),
    "rows of the first four slots": ("i * kRowsAtOnce * p_.key_cache.token_stride", "0"),
    "queries of the first quarter": ("(quarter_ + i * kLatentQuarters)", "(i * kLatentQuarters)"),
    "keys of the first quarter": ("quarter_ * 2 + lane_ / 16", "lane_ / 16"),
    "the last quarter left out": (
        "quarter < kLatentQuarters; ++quarter",
        "quarter < kLatentQuarters - 1; ++quarter",
    ),
    "queries of the first group": ("item.column + column_ + g * 8", "item.column + g * 8"),
    "scores of half of the tokens": ("t * 16 + i / 2 * 8 + lane_ / 4", "i / 2 * 8 + lane_ / 4"),
    "columns change places": ("lane_ % 4 * 2 + i % 2;", "lane_ % 4 * 2 + 1 - i % 2;"),
    "weights of two fours in one place": (" + four_ % 2 * 8", ""),
    "weights that overlap": ("four_ % 2 * 8", "four_ % 2 * 6"),
    "values that are not rescaled": ("    rescale(factors);\n", ""),
    "values rescaled by the last column": ("moves |= own[g][j] != 1.f", "moves = own[g][j] != 1.f"),
    "a sum that is not rescaled": ("    sum_ *= factor;\n", ""),
    "the maximum of half of a column": (
        "for (int flipped = 1; flipped < kThreadsOfColumn; flipped *= 2)\n      largest",
        "for (int flipped = 1; flipped < kThreadsOfColumn / 2; flipped *= 2)\n      largest",
    ),
    "the sum of half of a column": (
        "for (int flipped = 1; flipped < kThreadsOfColumn; flipped *= 2)\n      sum +=",
        "for (int flipped = 1; flipped < kThreadsOfColumn / 2; flipped *= 2)\n      sum +=",
    ),
    "the future is seen": (
        "static_cast<uint32_t>(position_ - token - i) >= window",
        "position_ - token - i >= static_cast<int>(window)",
    ),
    "what is behind the window is seen": (
        "static_cast<uint32_t>(position_ - token - i) >= window",
        "position_ - token - i < 0",
    ),
    "partitions that add up weights": ("    max_ = kUnseen;\n    sum_ = 0.f;\n", ""),
    "a prefix's partitions apart": ("item.slot < 0 || item.is_prefix != 0", "item.slot < 0"),
    "partitions in one slot": ("      row += Shape::kColumns;\n", ""),
    "values of the first tokens": ("step * 16 * Shape::kRowBytes +", ""),
    "weights of other tokens": ("w[i / 2][g][i % 2]", "w[i % 2][g][i / 2]"),
    "values of the first features": ("+ m * Shape::kWarps * 32", ""),
    "features change places": ("half * 8 + lane_ / 4]", "(1 - half) * 8 + lane_ / 4]"),
    "not normalised": (" / total.after", ""),
    "a sink that leaves values as they were": (" * total.before", ""),
    "another column's sink": ("min(own, bounds.num_columns - 1)", "0"),
}


class TestLatent(PlantedBugs):
    driver = "latent_driver.cpp"
    kernel = KERNEL
    sources = SOURCES
    mutants = MUTANTS
