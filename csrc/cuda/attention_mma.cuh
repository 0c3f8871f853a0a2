// Paged attention on tensor cores: decode, prefill and chunks by one definition.
//
// A block computes some columns (a query head in a row each) of one kv head. Keys come in tiles of
// 16 tokens, cut at absolute positions; warp w takes tiles w, w + 4 ... of a partition, each with a
// pipeline of asynchronous copies of its own, so that a block has tens of kilobytes on their way at
// any time. Keys are the operand of 16 rows and queries that of 8 columns: a group of 8 heads that
// decodes fills a tensor core's tile. S^T = K Q^T, O^T = V^T P^T.
//
// The order of additions of a column: within a tile the tensor core's; tiles of a warp in order;
// the warps of a partition in order; partitions in order. Columns of a matrix product do not touch
// each other, a column that sees nothing of a tile adds exact zeros, and rescaling by 2^0 is exact:
// so neither batch, chunk, split nor the other columns of a block change a bit.
#pragma once

#include <cstring>

#include "cuda/attention.h"
#include "cuda/attention_plan.h"
#include "cuda/device_plan.h"
#include "cuda/ptx.h"

namespace quire::cuda {

constexpr int kTileTokens = 16;
constexpr int kMmaWarps = 4;
constexpr int kMmaThreads = kMmaWarps * kWarpSize;
constexpr float kUnseen = -1e30f;  // maximum over no key; finite, so that differences are numbers

// How two softmax states are merged: what each one's sum and weighted values are scaled by.
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
};

__device__ __forceinline__ float merge_values(float before, float after,
                                              const MergeFactors& factors) {
  return fmaf(after, factors.after, before * factors.before);
}

// What the block knows of its columns beside the warps' own states.
template <int kColumns>
struct SharedColumns {
  float max[kMmaWarps][kColumns];
  float sum[kMmaWarps][kColumns];
  MergeFactors of_warp[kMmaWarps][kColumns];
  MergeFactors of_partition[kColumns];
  float total[kColumns];
};

template <typename T, int kHeadSize, int kColumnTiles>
struct MmaShape {
  static constexpr int kColumns = 8 * kColumnTiles;
  static constexpr int kSteps = kHeadSize / 16;  // matrix products along the head
  static constexpr int kChunks = kHeadSize / 8;  // 16 bytes each, of a token
  static constexpr int kStages = kHeadSize <= 128 ? 3 : 2;
  static constexpr int kElements = kColumns * kHeadSize / kMmaThreads;  // of a thread, merged

  // Rows of a tile lie so that eight of them in one column of chunks fall into eight different bank
  // groups: by swapping chunks where a row is a multiple of 128 bytes, else by an odd row length.
  static constexpr bool kSwizzles = kHeadSize % 64 == 0;
  static constexpr int kRowBytes = kHeadSize * 2 + (kSwizzles ? 0 : 16);
  static constexpr int kTileBytes = kTileTokens * kRowBytes;
  static constexpr int kPipelineBytes = kMmaWarps * kStages * 2 * kTileBytes;
  static constexpr int kAccStride = kHeadSize + 4;
  static constexpr int kSharedBytes = kPipelineBytes + kMmaWarps * kColumns * kAccStride * 4 +
                                      static_cast<int>(sizeof(SharedColumns<kColumns>));

  static __device__ int offset(int row, int chunk) {
    return row * kRowBytes + (kSwizzles ? chunk ^ (row & 7) : chunk) * 16;
  }
};

// What an item covers.
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
    const int last = min(item.column + columns, num_columns) - 1;
    const int64_t begin = first_position + item.column / group + 1 - p.sliding_window;
    keys_begin = begin > 0 ? static_cast<int>(begin) : 0;
    keys_end = first_position + last / group + 1;
  }

  // Where a column's query or output lies among rows.
  template <typename T>
  __device__ T* address(const RowsView& rows, int kv_head, int column) const {
    return static_cast<T*>(rows.data) + (first_row + column / group) * rows.token_stride +
           (kv_head * group + column % group) * rows.head_stride;
  }
};

// A warp's walk over its tiles.
template <typename T, int kHeadSize, int kColumnTiles>
class WarpAttention {
 public:
  using Shape = MmaShape<T, kHeadSize, kColumnTiles>;

  __device__ WarpAttention(const PagedAttentionParams& p, const AttentionItem& item,
                           const ItemBounds& bounds, char* pipeline)
      : p_(p),
        table_(p.block_tables + item.seq * p.block_table_stride),
        keys_(static_cast<const T*>(p.key_cache.data) + item.kv_head * p.key_cache.head_stride),
        values_(static_cast<const T*>(p.value_cache.data) +
                item.kv_head * p.value_cache.head_stride),
        stages_(pipeline + threadIdx.x / kWarpSize * Shape::kStages * 2 * Shape::kTileBytes),
        warp_(threadIdx.x / kWarpSize),
        lane_(threadIdx.x % kWarpSize),
        keys_begin_(bounds.keys_begin),
        keys_end_(bounds.keys_end),
        block_shift_(log2_of(p.block_size)) {
    constexpr int kTilesOfPartition = kPartitionTokens / kTileTokens;
    const int first =
        max(item.partition_begin * kTilesOfPartition, bounds.keys_begin / kTileTokens);
    const int end = min(item.partition_end * kTilesOfPartition,
                        (bounds.keys_end + kTileTokens - 1) / kTileTokens);
    next_ = first + ((warp_ - first) & (kMmaWarps - 1));
    tiles_end_ = end;
    next_copy_ = next_;
    load_queries(item, bounds);
    reset();
    for (int stage = 0; stage < Shape::kStages - 1; ++stage) copy_next();
  }

  // Takes its tiles up to a partition's end.
  __device__ void walk(int partition) {
    const int end = min((partition + 1) * (kPartitionTokens / kTileTokens), tiles_end_);
    for (; next_ < end; next_ += kMmaWarps) {
      copy_next();
      ptx::async_wait<Shape::kStages - 1>();
      __syncwarp();
      take_tile();
      __syncwarp();  // the stage may be filled again
    }
  }

  // Shows its state of the partition to the block, acc as [warps, columns, kAccStride], and begins
  // anew.
  __device__ void publish(float* acc, SharedColumns<Shape::kColumns>& columns) {
    for (int g = 0; g < kColumnTiles; ++g) {
      for (int j = 0; j < 2; ++j) {
        const int column = g * 8 + lane_ % 4 * 2 + j;
        float sum = sum_[g][j];
#pragma unroll
        for (int flipped = 4; flipped < kWarpSize; flipped *= 2)
          sum += __shfl_xor_sync(kFullMask, sum, flipped);
        if (lane_ < 4) {
          columns.max[warp_][column] = max_[g][j];
          columns.sum[warp_][column] = sum;
        }
#pragma unroll
        for (int step = 0; step < Shape::kSteps; ++step) {
          float* row =
              acc + (warp_ * Shape::kColumns + column) * Shape::kAccStride + step * 16 + lane_ / 4;
          row[0] = acc_[g][step][j];
          row[8] = acc_[g][step][j + 2];
        }
      }
    }
    reset();
  }

  __device__ void drain() { ptx::async_wait<0>(); }

 private:
  __device__ void reset() {
#pragma unroll
    for (int g = 0; g < kColumnTiles; ++g) {
      max_[g][0] = max_[g][1] = kUnseen;
      sum_[g][0] = sum_[g][1] = 0.f;
#pragma unroll
      for (int step = 0; step < Shape::kSteps; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc_[g][step][i] = 0.f;
    }
  }

  // Queries as the right operand, straight from memory; zeros for columns that are not there.
  __device__ void load_queries(const AttentionItem& item, const ItemBounds& bounds) {
#pragma unroll
    for (int g = 0; g < kColumnTiles; ++g) {
      const int column = item.column + g * 8 + lane_ / 4;
      const bool exists = column < bounds.num_columns;
      const T* q = bounds.address<const T>(p_.query, item.kv_head, exists ? column : 0);
#pragma unroll
      for (int step = 0; step < Shape::kSteps; ++step)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          query_[g][step][i] =
              exists ? *reinterpret_cast<const uint32_t*>(q + step * 16 + i * 8 + lane_ % 4 * 2)
                     : 0u;
        }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int own = item.column + g * 8 + lane_ % 4 * 2 + j;
        const bool own_exists = own < bounds.num_columns;
        position_[g][j] = own_exists ? bounds.first_position + own / bounds.group : -1;
        slope_[g][j] =
            own_exists && p_.alibi_slopes != nullptr
                ? p_.alibi_slopes[item.kv_head * bounds.group + own % bounds.group] * kLog2E
                : 0.f;
      }
    }
  }

  // Begins to copy the next tile, if there is one.
  __device__ void copy_next() {
    if (next_copy_ < tiles_end_) {
      char* stage = stages_ + stage_of(next_copy_) * 2 * Shape::kTileBytes;
      const int first = next_copy_ * kTileTokens;
      // A lane looks up a token's block; the others have it from there.
      const int token = first + lane_ % kTileTokens;
      int64_t key_offset = 0;
      int64_t value_offset = 0;
      if (token >= keys_begin_ && token < keys_end_) {
        const int64_t block = __ldg(table_ + (token >> block_shift_));
        const int64_t slot = token & ((1 << block_shift_) - 1);
        key_offset = block * p_.key_cache.block_stride + slot * p_.key_cache.token_stride;
        value_offset = block * p_.value_cache.block_stride + slot * p_.value_cache.token_stride;
      }
      constexpr int kCopies = kTileTokens * Shape::kChunks;
      // Of long heads a few at a time: their addresses would take all registers.
      [[maybe_unused]] constexpr int kUnrolled = kHeadSize <= 128 ? 8 : 2;
#pragma unroll kUnrolled
      for (int i = 0; i < kCopies; i += kWarpSize) {
        const int row = (i + lane_) / Shape::kChunks;
        const int chunk = (i + lane_) % Shape::kChunks;
        const auto from_key =
            __shfl_sync(kFullMask, static_cast<long long>(key_offset), row % kTileTokens);
        const auto from_value =
            __shfl_sync(kFullMask, static_cast<long long>(value_offset), row % kTileTokens);
        if (kCopies % kWarpSize == 0 || row < kTileTokens) {
          // What nobody sees is never read: its block may belong to others by now.
          const bool exists = first + row >= keys_begin_ && first + row < keys_end_;
          const int to = Shape::offset(row, chunk);
          ptx::async_copy_16(stage + to, keys_ + from_key + chunk * 8, exists);
          ptx::async_copy_16(stage + Shape::kTileBytes + to, values_ + from_value + chunk * 8,
                             exists);
        }
      }
      next_copy_ += kMmaWarps;
    }
    ptx::async_commit();
  }

  static __device__ int stage_of(int tile) { return tile / kMmaWarps % Shape::kStages; }

  __device__ void take_tile() {
    const char* keys = stages_ + stage_of(next_) * 2 * Shape::kTileBytes;
    const char* values = keys + Shape::kTileBytes;
    float scores[kColumnTiles][4] = {};
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      uint32_t k[4];
      ptx::load_matrices(k, keys + Shape::offset(lane_ % 16, step * 2 + lane_ / 16));
#pragma unroll
      for (int g = 0; g < kColumnTiles; ++g) ptx::multiply_add<T>(scores[g], k, query_[g][step]);
    }
    uint32_t probabilities[kColumnTiles][2];
#pragma unroll
    for (int g = 0; g < kColumnTiles; ++g) softmax(g, scores[g], probabilities[g]);
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      uint32_t v[4];
      const int token = lane_ % 8 + lane_ / 16 * 8;
      ptx::load_matrices_transposed(v, values + Shape::offset(token, step * 2 + lane_ / 8 % 2));
#pragma unroll
      for (int g = 0; g < kColumnTiles; ++g)
        ptx::multiply_add<T>(acc_[g][step], v, probabilities[g]);
    }
  }

  // Scores of 16 tokens and 8 columns become probabilities, as the right operand of the next
  // product. A lane has tokens lane / 4 and lane / 4 + 8 of two columns.
  __device__ void softmax(int g, float (&s)[4], uint32_t (&probabilities)[2]) {
    const int token = next_ * kTileTokens + lane_ / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int distance = token + i / 2 * 8 - position_[g][i % 2];
      float logit = p_.soft_cap != 0.f
                        ? tanhf(s[i] * (p_.scale / p_.soft_cap)) * (p_.soft_cap * kLog2E)
                        : s[i] * (p_.scale * kLog2E);
      if (slope_[g][i % 2] != 0.f)
        logit = fmaf(slope_[g][i % 2], static_cast<float>(distance), logit);
      const bool seen = distance <= 0 && -distance < p_.sliding_window;
      s[i] = seen ? logit : -INFINITY;
    }
    float larger[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      larger[j] = fmaxf(s[j], s[j + 2]);
#pragma unroll
      for (int flipped = 4; flipped < kWarpSize; flipped *= 2)
        larger[j] = fmaxf(larger[j], __shfl_xor_sync(kFullMask, larger[j], flipped));
    }
    // Most tiles move no maximum; then there is nothing to rescale.
    if (__any_sync(kFullMask, larger[0] > max_[g][0] || larger[1] > max_[g][1])) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float max = fmaxf(max_[g][j], larger[j]);
        const float factor = ptx::exp2(max_[g][j] - max);
        max_[g][j] = max;
        sum_[g][j] *= factor;
#pragma unroll
        for (int step = 0; step < Shape::kSteps; ++step) {
          acc_[g][step][j] *= factor;
          acc_[g][step][j + 2] *= factor;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] = ptx::exp2(s[i] - max_[g][i % 2]);
      sum_[g][i % 2] += s[i];
    }
    probabilities[0] = ptx::transpose(pack<T>(s[0], s[1]));
    probabilities[1] = ptx::transpose(pack<T>(s[2], s[3]));
  }

  template <typename U>
  static __device__ uint32_t pack(float low, float high) {
    const U pair[2] = {from_float<U>(low), from_float<U>(high)};
    uint32_t bits;
    memcpy(&bits, pair, sizeof bits);
    return bits;
  }

  const PagedAttentionParams& p_;
  const int32_t* table_;
  const T* keys_;
  const T* values_;
  char* stages_;
  int warp_;
  int lane_;
  int keys_begin_;
  int keys_end_;
  int block_shift_;
  int next_;       // tile to take
  int next_copy_;  // tile to copy
  int tiles_end_;
  uint32_t query_[kColumnTiles][Shape::kSteps][2];
  int position_[kColumnTiles][2];  // of the query of each column that the lane has scores of
  float slope_[kColumnTiles][2];
  float max_[kColumnTiles][2];
  float sum_[kColumnTiles][2];
  float acc_[kColumnTiles][Shape::kSteps][4];
};

template <typename T, int kHeadSize, int kColumnTiles>
__global__ void __launch_bounds__(kMmaThreads, 2)
    attention_mma_kernel(const PagedAttentionParams p, const AttentionItem* items,
                         PartialResults partials) {
  using Shape = MmaShape<T, kHeadSize, kColumnTiles>;
  QUIRE_DYNAMIC_SHARED(shared);
  auto* warps_acc = reinterpret_cast<float*>(shared + Shape::kPipelineBytes);
  auto& columns = *reinterpret_cast<SharedColumns<Shape::kColumns>*>(
      warps_acc + kMmaWarps * Shape::kColumns * Shape::kAccStride);
  const AttentionItem item = items[blockIdx.x];
  const ItemBounds bounds(p, item, Shape::kColumns);
  WarpAttention<T, kHeadSize, kColumnTiles> warp(p, item, bounds, shared);
  const int thread = static_cast<int>(threadIdx.x);
  ColumnState total;  // of column `thread`
  float acc[Shape::kElements] = {};

  for (int partition = item.partition_begin; partition < item.partition_end; ++partition) {
    warp.walk(partition);
    warp.publish(warps_acc, columns);
    __syncthreads();
    const int64_t row = (int64_t{item.slot} + partition - item.partition_begin) * Shape::kColumns;
    if (thread < Shape::kColumns) {
      ColumnState state;
      for (int w = 0; w < kMmaWarps; ++w)
        columns.of_warp[w][thread] = state.merge(columns.max[w][thread], columns.sum[w][thread]);
      columns.of_partition[thread] = total.merge(state.max, state.sum);
      if (item.slot >= 0) {
        partials.max[row + thread] = state.max;
        partials.sum[row + thread] = state.sum;
      }
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < Shape::kElements; ++e) {
      const int column = (thread + e * kMmaThreads) / kHeadSize;
      const int d = (thread + e * kMmaThreads) % kHeadSize;
      float part = 0.f;
#pragma unroll
      for (int w = 0; w < kMmaWarps; ++w) {
        part = merge_values(part, warps_acc[(w * Shape::kColumns + column) * Shape::kAccStride + d],
                            columns.of_warp[w][column]);
      }
      if (item.slot < 0) {
        acc[e] = merge_values(acc[e], part, columns.of_partition[column]);
      } else {
        partials.acc[(row + column) * kHeadSize + d] = part;
      }
    }
    __syncthreads();  // all have read before the next partition is shown
  }
  warp.drain();
  if (item.slot >= 0) return;
  if (thread < Shape::kColumns) columns.total[thread] = total.sum;
  __syncthreads();
#pragma unroll
  for (int e = 0; e < Shape::kElements; ++e) {
    const int column = (thread + e * kMmaThreads) / kHeadSize;
    if (item.column + column < bounds.num_columns) {
      bounds.address<T>(p.out, item.kv_head,
                        item.column + column)[(thread + e * kMmaThreads) % kHeadSize] =
          from_float<T>(acc[e] / columns.total[column]);
    }
  }
}

// Merges the partitions of columns that several blocks have computed: a block for each tile of
// columns, threads along the head.
template <typename T, int kHeadSize, int kColumnTiles>
__global__ void __launch_bounds__(kMmaThreads)
    attention_merge_kernel(const PagedAttentionParams p, const AttentionMerge* merges,
                           PartialResults partials) {
  constexpr int kColumns = MmaShape<T, kHeadSize, kColumnTiles>::kColumns;
  const AttentionMerge work = merges[blockIdx.x];
  const AttentionItem item{work.seq, work.kv_head, work.column, 0, 0, 0};
  const ItemBounds bounds(p, item, kColumns);
  const int column = static_cast<int>(blockIdx.y);
  if (work.column + column >= bounds.num_columns) return;
  T* out = bounds.address<T>(p.out, work.kv_head, work.column + column);
  for (int d = static_cast<int>(threadIdx.x); d < kHeadSize; d += kMmaThreads) {
    ColumnState total;
    float acc = 0.f;
    for (int i = 0; i < work.num_slots; ++i) {
      const int64_t row = int64_t{work.slot + i} * kColumns + column;
      const MergeFactors factors = total.merge(partials.max[row], partials.sum[row]);
      acc = merge_values(acc, partials.acc[row * kHeadSize + d], factors);
    }
    out[d] = from_float<T>(acc / total.sum);
  }
}

}  // namespace quire::cuda
