// Latent attention on tensor cores (latent.cuh): the shape of a block's work, how it copies tiles
// of cached rows, and the two products of a warp with them.
#pragma once

#include <cstring>

#include "cuda/attention/mma_columns.cuh"

namespace quire::cuda {

constexpr int kLatentKeySize = 576;    // elements of a cached row, and of a query
constexpr int kLatentValueSize = 512;  // the first of a row, and those of a result
constexpr int kLatentTokens = 32;      // of a tile
constexpr int kLatentQuarters = 4;     // of the steps of a score
constexpr int kLatentGroupColumns = 16;

// The block's record of its columns.
template <int kColumns>
struct LatentColumns {
  float factor[kColumns];  // of what was summed before the tile
  MergeFactors merge[kColumns];
};

// Four warps for each group of 16 columns. Neither groups nor stages change a bit.
template <typename T, int kNumGroups, int kNumStages>
struct LatentShape : TileShape<T, kLatentKeySize> {
  using TileShape<T, kLatentKeySize>::kRowBytes;
  static constexpr int kColumns = kNumGroups * kLatentGroupColumns;
  static constexpr int kWarps = kNumGroups * kLatentQuarters;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kStages = kNumStages;
  static constexpr int kStageBytes = kLatentTokens * kRowBytes;
  static constexpr int kScoreStride = kLatentTokens + 4;
  static constexpr int kScoreBytes = kLatentQuarters * kColumns * kScoreStride * 4;
  static constexpr int kWeightBytes = kColumns * kLatentTokens * static_cast<int>(sizeof(T));
  static constexpr int kSharedBytes = kStages * kStageBytes + kScoreBytes + kWeightBytes +
                                      static_cast<int>(sizeof(LatentColumns<kColumns>));

  // The scores of a column by one quarter of the warps. Rows are as far from each other that
  // neither products nor softmax meet in a bank.
  static __device__ int scores_of(int quarter, int column) {
    return (quarter * kColumns + column) * kScoreStride;
  }

  // Where the weights of eight tokens of a column lie: chunks of two columns in eight bank groups.
  static __device__ int weights_offset(int column, int chunk) {
    return column * kLatentTokens * static_cast<int>(sizeof(T)) + (chunk ^ (column / 2 & 3)) * 16;
  }
};

// The copies of a warp: some tokens of each tile, eight lanes along a row.
template <typename T, typename Shape>
class LatentCopies {
 public:
  __device__ LatentCopies(const PagedAttentionParams& p, const AttentionItem& item,
                          const ItemBounds& bounds, char* stages)
      : p_(p),
        table_(p.block_tables + item.seq * p.block_table_stride),
        stages_(stages),
        keys_begin_(bounds.keys_begin),
        keys_end_(bounds.keys_end),
        block_shift_(log2_of(p.block_size)) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    row_ = static_cast<int>(threadIdx.x) / kWarpSize * kRows + lane / kLanes;
    first_ = static_cast<const T*>(p.key_cache.data) + item.kv_head * p.key_cache.head_stride +
             lane % kLanes * kChunkElements;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) to_[i] = Shape::offset(row_ + i * kRowsAtOnce, lane % kLanes);
  }

  // Begins to copy a tile to where a byte of the stages begins.
  __device__ __forceinline__ void begin(int tile, int stage) const {
    const int token = tile * kLatentTokens + row_;
    // A warp's tokens are of one block; where some exist, it is looked up by one that does.
    const int known = min(max(token, keys_begin_), keys_end_ - 1);
    const int64_t block =
        static_cast<uint32_t>(__ldg(table_ + (static_cast<uint32_t>(known) >> block_shift_)));
    const int64_t slot = token & (static_cast<int>(p_.block_size) - 1);
    const T* from = first_ + block * p_.key_cache.block_stride + slot * p_.key_cache.token_stride;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      // Keys that no row sees are never read: their block may belong to others by now.
      const int own = token + i * kRowsAtOnce;
      const bool exists = own >= keys_begin_ && own < keys_end_;
      const T* row = from + i * kRowsAtOnce * p_.key_cache.token_stride;
#pragma unroll
      for (int chunk = 0; chunk < Shape::kChunks; chunk += kLanes) {
        ptx::async_copy_16(stages_ + stage + to_[i] + chunk * 16, row + chunk * kChunkElements,
                           exists);
      }
    }
  }

 private:
  static constexpr int kRows = kLatentTokens / Shape::kWarps;
  static constexpr int kLanes = 8;
  static constexpr int kRowsAtOnce = kWarpSize / kLanes;
  static constexpr int kTurns = kRows / kRowsAtOnce;
  static constexpr int kChunkElements = 16 / static_cast<int>(sizeof(T));
  static_assert(kTurns > 0 && kRows <= 8, "the rows of a warp are of one block");

  const PagedAttentionParams& p_;
  const int32_t* table_;
  char* stages_;
  const T* first_;  // of the first slot of the first block
  int keys_begin_;
  int keys_end_;
  int block_shift_;
  int row_;  // of the tile
  int to_[kTurns];
};

// A warp's quarter of the steps of scores, for the 16 columns of its group. Queries stay in
// registers.
template <typename T, typename Shape>
class LatentScores {
 public:
  __device__ LatentScores(const PagedAttentionParams& p, const AttentionItem& item,
                          const ItemBounds& bounds)
      : lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        quarter_(static_cast<int>(threadIdx.x) / kWarpSize % kLatentQuarters),
        column_(static_cast<int>(threadIdx.x) / kWarpSize / kLatentQuarters * kLatentGroupColumns),
        keys_(Shape::offset(lane_ % 16, quarter_ * 2 + lane_ / 16)) {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const int column = item.column + column_ + g * 8 + lane_ / 4;
      const bool exists = column < bounds.num_columns;
      const T* q = bounds.template address<const T>(p.query, item.kv_head, exists ? column : 0);
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int element = (quarter_ + i * kLatentQuarters) * 16 + half * 8 + lane_ % 4 * 2;
          query_[g][i][half] = exists ? *reinterpret_cast<const uint32_t*>(q + element) : 0u;
        }
    }
  }

  // Multiplies a tile of keys by the queries: step quarter, quarter + 4 ... of 16 elements.
  __device__ __forceinline__ void multiply(const char* tile, float* scores) const {
    float sums[2][2][4] = {};  // of 16 tokens, 8 columns
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        uint32_t k[4];
        ptx::load_matrices(k, tile + keys_ + t * 16 * Shape::kRowBytes + i * kLatentQuarters * 32);
#pragma unroll
        for (int g = 0; g < 2; ++g) ptx::multiply_add<T>(sums[t][g], k, query_[g][i]);
      }
    }
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int g = 0; g < 2; ++g)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = column_ + g * 8 + lane_ % 4 * 2 + i % 2;
          const int token = t * 16 + i / 2 * 8 + lane_ / 4;
          scores[Shape::scores_of(quarter_, column) + token] = sums[t][g][i];
        }
  }

 private:
  static constexpr int kSteps = Shape::kSteps / kLatentQuarters;
  static_assert(Shape::kSteps % kLatentQuarters == 0 && kLatentQuarters * 32 % 128 == 0,
                "a warp's steps lie alike in eights of chunks");

  int lane_;
  int quarter_;
  int column_;  // the first of the group
  int keys_;    // where the lane's row of the first step lies in a tile
  uint32_t query_[2][kSteps][2];
};

// A warp's features of the weighted values of all columns: 16 of every kWarps * 16.
template <typename T, typename Shape>
class LatentValues {
 public:
  __device__ LatentValues()
      : lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        warp_(static_cast<int>(threadIdx.x) / kWarpSize),
        values_(Shape::offset(lane_ % 8 + lane_ / 16 * 8, warp_ % 4 * 2 + lane_ / 8 % 2) +
                warp_ / 4 * 128) {}

  // Adds a tile of values, weighted. `factors` are those of what was summed before.
  __device__ __forceinline__ void add(const char* tile, const char* weights, const float* factors) {
    rescale(factors);
    uint32_t w[2][kEights][2];
#pragma unroll
    for (int g = 0; g < kEights; ++g) {
      uint32_t four[4];
      ptx::load_matrices(four, weights + Shape::weights_offset(g * 8 + lane_ % 8, lane_ / 8));
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i / 2][g][i % 2] = four[i];
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        uint32_t v[4];
        ptx::load_matrices_transposed(
            v, tile + values_ + step * 16 * Shape::kRowBytes + m * Shape::kWarps * 32);
#pragma unroll
        for (int g = 0; g < kEights; ++g) ptx::multiply_add<T>(acc_[m][g], v, w[step][g]);
      }
    }
  }

  // Merges what was added since the last call into the total, with the factors of each column.
  __device__ __forceinline__ void merge(const MergeFactors* factors) {
    for_each([&](int m, int g, int i, int column, int) {
      total_[m][g][i] = merge_values(total_[m][g][i], acc_[m][g][i], factors[column]);
      acc_[m][g][i] = 0.f;
    });
  }

  // Stores what was added since the last call as the rows of `acc`, [columns, kLatentValueSize].
  __device__ __forceinline__ void store(float* acc) {
    for_each([&](int m, int g, int i, int column, int feature) {
      acc[column * kLatentValueSize + feature] = acc_[m][g][i];
      acc_[m][g][i] = 0.f;
    });
  }

  __device__ __forceinline__ void store_total(float* acc) const {
    for_each([&](int m, int g, int i, int column, int feature) {
      acc[column * kLatentValueSize + feature] = total_[m][g][i];
    });
  }

  // Writes the results of an item. `totals` are the factors of a column's values and what they are
  // to be divided by.
  __device__ __forceinline__ void write(const PagedAttentionParams& p, const AttentionItem& item,
                                        const MergeFactors* totals) const {
    const ItemBounds bounds(p, item, Shape::kColumns);
#pragma unroll
    for (int g = 0; g < kEights; ++g)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = g * 8 + lane_ % 4 * 2 + j;
        if (item.column + column >= bounds.num_columns) continue;
        T* out = bounds.template address<T>(p.out, item.kv_head, item.column + column);
        const MergeFactors total = totals[column];
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            out[(m * Shape::kWarps + warp_) * 16 + half * 8 + lane_ / 4] =
                from_float<T>(total_[m][g][half * 2 + j] * total.before / total.after);
          }
      }
  }

 private:
  static constexpr int kTiles = kLatentValueSize / 16 / Shape::kWarps;
  static constexpr int kEights = Shape::kColumns / 8;

  // Most tiles move no maximum; then there is nothing to rescale.
  __device__ __forceinline__ void rescale(const float* factors) {
    float own[kEights][2];
    bool moves = false;
#pragma unroll
    for (int g = 0; g < kEights; ++g)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        own[g][j] = factors[g * 8 + lane_ % 4 * 2 + j];
        moves |= own[g][j] != 1.f;
      }
    if (!__any_sync(kFullMask, moves)) return;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int g = 0; g < kEights; ++g)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc_[m][g][i] *= own[g][i % 2];
  }

  template <typename Body>
  __device__ __forceinline__ void for_each(const Body& body) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int g = 0; g < kEights; ++g)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          body(m, g, i, g * 8 + lane_ % 4 * 2 + i % 2,
               (m * Shape::kWarps + warp_) * 16 + i / 2 * 8 + lane_ / 4);
        }
  }

  int lane_;
  int warp_;
  int values_;  // where the lane's row of the first features lies in a tile
  float acc_[kTiles][kEights][4] = {};
  float total_[kTiles][kEights][4] = {};
};

}  // namespace quire::cuda
