// Columns of attention on tensor cores (mma.cuh): the shape of a block's work, what an
// item covers, and how softmax states are merged.
#pragma once

#include <cstring>

#include "cuda/attention/common.h"
#include "cuda/ptx.h"

namespace quire::cuda {

// Two numbers, each rounded, as an operand of tensor cores has them.
template <typename T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  const T pair[2] = {from_float<T>(low), from_float<T>(high)};
  uint32_t bits;
  memcpy(&bits, pair, sizeof bits);
  return bits;
}

constexpr int kTileTokens = 16;
constexpr int kMmaWarps = 4;
constexpr int kMmaThreads = kMmaWarps * kWarpSize;
constexpr float kUnseen = -1e30f;  // maximum over no key; finite, so that differences are numbers

// How two softmax states are merged: the factors of each one's sum and weighted values.
struct MergeFactors {
  float before;
  float after;
};

// The maximum and sum of a column; adds to them those of keys that come after.
struct ColumnState {
  float max = kUnseen;
  float sum = 0.f;

  __device__ MergeFactors merge(float part_max, float part_sum) {
    const float larger = fmaxf(max, part_max);
    const MergeFactors factors{ptx::exp2(max - larger), ptx::exp2(part_max - larger)};
    max = larger;
    sum = fmaf(part_sum, factors.after, sum * factors.before);
    return factors;
  }

  // Adds the sink of a query head, if heads have any, behind all keys. Returns the factor of the
  // weighted values.
  __device__ float add_sink(const PagedAttentionParams& p, int head) {
    return p.sinks != nullptr ? merge(sink_of(p, head), 1.f).before : 1.f;
  }
};

__device__ __forceinline__ float merge_values(float before, float after,
                                              const MergeFactors& factors) {
  return fmaf(after, factors.after, before * factors.before);
}

// A warp's maximum and sum of a column; then, in their place, how its values are merged.
union WarpColumn {
  struct {
    float max;
    float sum;
  } state;
  MergeFactors factors;

  __device__ void merge_into(ColumnState& total) { factors = total.merge(state.max, state.sum); }
};

// The block's record of its columns.
template <int kColumns>
struct SharedColumns {
  WarpColumn of_warp[kMmaWarps][kColumns];
  MergeFactors of_partition[kColumns];
  float total[kColumns];
  float factor[kColumns];  // of values, by the sink
};

// The stages of a warp's pipeline of copies, where a device has room for them. One-byte elements
// take more, for as many bytes in flight.
template <typename Cached, int kHeadSize>
constexpr int most_stages() {
  if (sizeof(Cached) == 2) return kHeadSize <= 128 ? 3 : 2;
  return kHeadSize <= 128 ? 4 : kHeadSize <= 192 ? 3 : 2;
}

// A tile of keys, or of values, in shared memory.
template <typename Cached, int kHeadSize>
struct TileShape {
  static constexpr int kBytes = static_cast<int>(sizeof(Cached));
  static constexpr int kSteps = kHeadSize / 16;            // matrix products along the head
  static constexpr int kChunks = kHeadSize * kBytes / 16;  // 16 bytes each, of a token

  // Rows of a tile lie so that eight of them in one column of chunks fall into eight different bank
  // groups: by swapping chunks where a row is a multiple of 128 bytes, else by an odd row length.
  static constexpr bool kSwizzles = kChunks % 8 == 0;
  static constexpr int kRowBytes = (kSwizzles ? kChunks : kChunks | 1) * 16;
  static constexpr int kTileBytes = kTileTokens * kRowBytes;

  static __device__ int offset(int row, int chunk) {
    return row * kRowBytes + (kSwizzles ? chunk ^ (row & 7) : chunk) * 16;
  }

  // How far a chunk lies behind that of the same place in the row's first eight, or four.
  static __device__ int behind(int chunk) { return chunk * 16; }
};

// The shape of a block's work over a cache of `Cached` elements. The stages change no bit.
template <typename Cached, int kHeadSize, int kColumnTiles, int kNumStages>
struct MmaShape : TileShape<Cached, kHeadSize> {
  using TileShape<Cached, kHeadSize>::kTileBytes;
  static constexpr int kColumns = 8 * kColumnTiles;
  static constexpr int kStages = kNumStages;
  static constexpr int kElements = kColumns * kHeadSize / kMmaThreads;  // of a thread, merged
  static constexpr int kPipelineBytes = kMmaWarps * kStages * 2 * kTileBytes;
  static constexpr int kAccStride = kHeadSize + 4;
  static constexpr int kSharedBytes = kPipelineBytes + kMmaWarps * kColumns * kAccStride * 4 +
                                      static_cast<int>(sizeof(SharedColumns<kColumns>));

  // Whether two blocks fit a multiprocessor with so many KB of shared memory, of which a block
  // takes 1 KB beside what it asks for.
  static constexpr bool two_fit(int shared_kb) {
    return 2 * (kSharedBytes + 1024) <= shared_kb * 1024;
  }
};

// The columns and keys of an item.
struct ItemBounds {
  int group;
  int num_columns;  // of the sequence
  int first_row;    // of the sequence in the batch
  int first_position;
  int keys_begin;
  int keys_end;

  __device__ ItemBounds(const PagedAttentionParams& p, const AttentionItem& item, int columns) {
    group = static_cast<int>(p.num_heads / p.num_kv_heads);
    first_row = p.query_start_loc[item.seq];
    const int num_rows = p.query_start_loc[item.seq + 1] - first_row;
    num_columns = num_rows * group;
    first_position = p.seq_lens[item.seq] - num_rows;
    keys_begin = first_key(p.sliding_window, item.column);
    keys_end = end_of_keys(min(item.column + columns, num_columns) - 1);
  }

  // The first key that a column sees, and the end of its keys.
  __device__ int first_key(int64_t window, int column) const {
    const int64_t begin = end_of_keys(column) - window;
    return begin > 0 ? static_cast<int>(begin) : 0;
  }
  __device__ int end_of_keys(int column) const { return position(column) + 1; }

  // Of a column's query.
  __device__ int position(int column) const { return first_position + column / group; }

  __device__ int head(int kv_head, int column) const { return kv_head * group + column % group; }

  // The address of a column's query or output among rows.
  template <typename T>
  __device__ T* address(const RowsView& rows, int kv_head, int column) const {
    return static_cast<T*>(rows.data) + (first_row + column / group) * rows.token_stride +
           head(kv_head, column) * rows.head_stride;
  }
};

}  // namespace quire::cuda
