"""Bugs planted in the attention kernel: the emulator must notice each of them."""

from tests.emu.planted_bugs import PlantedBugs

# The kernel, in pieces.
KERNEL = (
    "attention/mma.cuh",
    "attention/mma_warp.cuh",
    "attention/mma_tile.cuh",
    "attention/mma_copies.cuh",
    "attention/mma_operands.cuh",
    "attention/mma_columns.cuh",
    "attention/common.h",
)
SOURCES = ("core/check.cpp", "cuda/attention/plain.cu", "cuda/attention/plan.cu")

# What is wrong: the text of the kernel that is replaced, and by what.
MUTANTS = {
    "blocks without work": ("  if (item.seq == kNoWork) return;\n", ""),
    "no barrier before warps are merged": (
        "warp.publish(warps_acc, columns);\n    __syncthreads();",
        "warp.publish(warps_acc, columns);",
    ),
    "no barrier before the next partition is shown": (
        "__syncthreads();  // all have read before the next partition is shown",
        "",
    ),
    "a barrier that half of the block skips": (
        "warp.publish(warps_acc, columns);\n    __syncthreads();",
        "warp.publish(warps_acc, columns);\n    if (thread < 64) __syncthreads();",
    ),
    "a shuffle that half of the warp skips": (
        "sum += __shfl_xor_sync(kFullMask, sum, flipped);",
        "if (lane_ < 16) sum += __shfl_xor_sync(kFullMask, sum, flipped);",
    ),
    "no barrier after the wait for copies": (
        "ptx::async_wait<kStages - 1>();\n      __syncwarp();",
        "ptx::async_wait<kStages - 1>();",
    ),
    "no barrier before a stage is filled again": (
        "__syncwarp();  // the stage may be filled again",
        "",
    ),
    "a copy into the stage that is read": ("kMmaWarps, free_stage_);", "kMmaWarps, stage_);"),
    "a stage that is not freed": ("free_stage_ = stage_;", ""),
    "too few copies waited for": (
        "ptx::async_wait<kStages - 1>();",
        "ptx::async_wait<kStages>();",
    ),
    "a misaligned copy": ("key + chunk * kChunkElements,", "key + chunk * kChunkElements + 1,"),
    "rows as if of one kind": ("to_[kind]", "to_[0]"),
    "rows of the first half twice": ("copy_row(half, row, token", "copy_row(0, row, token"),
    "the future is seen": ("static_cast<uint32_t>(ages[i]) >= window_", "ages[i] >= int(window_)"),
    "no window": ("static_cast<uint32_t>(ages[i]) >= window_", "ages[i] < 0"),
    "scores capped in other places": ("s[3] = capped;", "s[0] = capped;"),
    "what is outside is read": (
        "static_cast<uint32_t>(token - keys_begin_) < static_cast<uint32_t>(num_keys_);",
        "true;",
    ),
    "another block's tokens": ("(known) >> block_shift_", "(known) >> block_shift_ + 1"),
    "the next tile's block": ("place * 2 + half)", "(place * 2 + half) ^ 2)"),
    "blocks of the first warp's tiles": ("* kMmaWarps + warp_, lane_", "* kMmaWarps, lane_"),
    "blocks of the tiles before": ("        blocks_ = later_blocks_;\n", ""),
    "blocks of the first tiles again": (
        "look_up(next_ + kTilesOfLookup * kMmaWarps);",
        "look_up(next_);",
    ),
    "later blocks once": (
        "        later_blocks_ = look_up(tile + (1 + kTilesOfLookup) * kMmaWarps);\n",
        "",
    ),
    "another slot's token": ("static_cast<uint32_t>(token) &", "~static_cast<uint32_t>(token) &"),
    "columns change places": (
        "const int column = g * 8 + lane_ % 4 * 2 + j;",
        "const int column = g * 8 + lane_ % 4 * 2 + 1 - j;",
    ),
    "queries' elements change places": (
        "return i * 8 + lane % 4 * 2",
        "return (1 - i) * 8 + lane % 4 * 2",
    ),
    "keys' rows change places": (
        "return LaneRows<Shape>(Shape::offset(lane % 16,",
        "return LaneRows<Shape>(Shape::offset((lane ^ 8) % 16,",
    ),
    "chunks of every load in the places of the first's": ("(lane & 6)) - (lane & 6)", "0)"),
    "values not transposed": ("load_matrices_transposed(", "load_matrices("),
    "no rescaling of values": ("acc_[g][step][j] *= factor;", ""),
    "no rescaling of the sum": ("sum_[g][j] *= factor;", ""),
    "no new beginning after a partition": ("    Base::reset();\n", ""),
    "a warp's state left out": ("w < kMmaWarps; ++w) columns", "w < kMmaWarps - 1; ++w) columns"),
    "a prefix's partitions apart": ("item.slot < 0 || item.is_prefix != 0", "item.slot < 0"),
    "partitions in one slot": ("partition - item.partition_begin) * Shape", "0) * Shape"),
    "not normalised": ("factor[column] / columns.total[column]", "factor[column]"),
    "scaled in another base": ("p.scale * kLog2E", "p.scale"),
    "capped in another base": ("p.soft_cap * kLog2E", "p.soft_cap"),
    "queries in the order of 16-bit keys": (
        "return lane % 4 * 4 + i * 2;",
        "return i * 8 + lane % 4 * 2;",
    ),
    "halves of an 8-bit key change places": ("k[s][i], k[s][i + 2])", "k[s][i + 2], k[s][i])"),
    "pairs of 8-bit values of two elements": ("0x3120", "0x3210"),
    "results in the order of 16-bit values": (
        "return lane / 4 * 2 + half;",
        "return half * 8 + lane / 4;",
    ),
    "the largest of half a query": (
        "largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 2));",
        "",
    ),
    "scores of queries that are too large": ("= of_column * key_scale", "= key_scale"),
    "another column's power of two": (
        "__shfl_sync(kFullMask, inverse, (lane_ % 4 * 2 + j) * 4)",
        "inverse",
    ),
    "no scale of keys": ("= of_column * key_scale", "= of_column"),
    "no scale of values": ("columns.total[column] * value_scale", "columns.total[column]"),
    "no sink": (
        "total.add_sink(p, bounds.head(item.kv_head, item.column + thread))",
        "1.f",
    ),
    "a sink that leaves values as they were": ("acc[e] * columns.factor[column]", "acc[e]"),
    "a sink in another base": ("p.sinks[head] * kLog2E", "p.sinks[head]"),
    "a sink of half the weight": ("merge(sink_of(p, head), 1.f)", "merge(sink_of(p, head), 0.5f)"),
    "another head's sink": (
        "bounds.head(item.kv_head, item.column + thread)",
        "bounds.head(item.kv_head, thread + 1)",
    ),
    "another head's slope": (" + own % bounds.group)", ")"),
}


class TestAttention(PlantedBugs):
    driver = "attention_driver.cpp"
    kernel = KERNEL
    sources = SOURCES
    mutants = MUTANTS
