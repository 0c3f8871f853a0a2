// Paged attention over latent rows (MLA, DeepSeek-V2, section 2.1, with the up-projections
// absorbed): a token has one cached row of 576 elements for all heads, whose first 512 are its
// value. Decode, prompts and chunks by one definition.
//
// A block computes 16 or 32 columns (a query head in a row each). Keys come in tiles of 32 tokens,
// cut at absolute positions, which all of its warps share: a row is copied once, for both products.
// Scores: of each group of 16 columns four warps share the steps of 16 elements, S^T = K Q^T, and
// leave their sums in shared memory. There eight threads have a column, four tokens each, and make
// weights of them, rounded to T. Values: warps share the 512 features of a result,
// O^T = V^T P^T.
//
// The order of additions of a column: of a score, warp w takes steps w, w + 4 ... of 16 elements in
// one accumulator of the tensor core; the four sums are added in order. Of the weights of a
// partition, a thread adds those of tokens 4 t to 4 t + 3 of each tile in order, tiles in order,
// and the eight threads are added as neighbours in a binary tree. Values are added tile by tile,
// 16 tokens at once; partitions are merged in order, a sink last. Columns of a matrix product do
// not touch each other, a column that sees nothing of a tile adds exact zeros, and rescaling by 2^0
// is exact: so neither batch, chunk, split, the other columns nor how many a block has change a
// bit.
#pragma once

#include "cuda/attention/latent_tile.cuh"

namespace quire::cuda {

// What a thread has of its column: the largest logit, its part of the sum of weights, and the state
// of the partitions before. Of the eight threads of a column all but the parts are the same.
template <typename T, typename Shape>
class LatentWeights {
 public:
  __device__ LatentWeights(const PagedAttentionParams& p, const AttentionItem& item,
                           const ItemBounds& bounds)
      : p_(p),
        factor_(score_factor(p)),
        column_(static_cast<int>(threadIdx.x) / kThreadsOfColumn),
        four_(static_cast<int>(threadIdx.x) % kThreadsOfColumn) {
    const int own = item.column + column_;
    position_ = own < bounds.num_columns ? bounds.position(own) : -1;
    head_ = bounds.head(item.kv_head, min(own, bounds.num_columns - 1));
  }

  // Makes weights of the scores of a tile, and the factor of what was summed before.
  __device__ __forceinline__ void weigh(int tile, const float* scores, char* weights,
                                        LatentColumns<Shape::kColumns>& columns) {
    float s[4];
    add_quarters(scores, s);
    to_logits(tile * kLatentTokens + four_ * 4, s);
    float largest = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
#pragma unroll
    for (int flipped = 1; flipped < kThreadsOfColumn; flipped *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, flipped));
    const float max = fmaxf(max_, largest);
    const float factor = ptx::exp2(max_ - max);
    max_ = max;
    sum_ *= factor;
    T rounded[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float weight = ptx::exp2(s[i] - max);
      sum_ += weight;
      rounded[i] = from_float<T>(weight);
    }
    uint2 bits;
    memcpy(&bits, rounded, sizeof bits);
    *reinterpret_cast<uint2*>(weights + Shape::weights_offset(column_, four_ / 2) + four_ % 2 * 8) =
        bits;
    if (four_ == 0) columns.factor[column_] = factor;
  }

  // Ends a partition: merges it with those before, or else stores its state in a row of `partials`.
  __device__ __forceinline__ void end_partition(bool merges, const PartialResults& partials,
                                                int row, LatentColumns<Shape::kColumns>& columns) {
    float sum = sum_;
#pragma unroll
    for (int flipped = 1; flipped < kThreadsOfColumn; flipped *= 2)
      sum += __shfl_xor_sync(kFullMask, sum, flipped);
    if (merges) {
      const MergeFactors factors = total_.merge(max_, sum);
      if (four_ == 0) columns.merge[column_] = factors;
    } else if (four_ == 0) {
      partials.max[row + column_] = max_;
      partials.sum[row + column_] = sum;
    }
    max_ = kUnseen;
    sum_ = 0.f;
  }

  __device__ __forceinline__ void store_total(const PartialResults& partials, int row) const {
    if (four_ != 0) return;
    partials.max[row + column_] = total_.max;
    partials.sum[row + column_] = total_.sum;
  }

  // Shows the factor of the values by a sink, and what they are to be divided by.
  __device__ __forceinline__ void show_total(LatentColumns<Shape::kColumns>& columns) {
    const float factor = total_.add_sink(p_, head_);
    if (four_ == 0) columns.merge[column_] = {factor, total_.sum};
  }

 private:
  static constexpr int kThreadsOfColumn = kLatentTokens / 4;
  static_assert(Shape::kColumns * kThreadsOfColumn == Shape::kThreads);

  __device__ __forceinline__ void add_quarters(const float* scores, float (&s)[4]) const {
#pragma unroll
    for (int quarter = 0; quarter < kLatentQuarters; ++quarter) {
      const float4 part =
          *reinterpret_cast<const float4*>(scores + Shape::scores_of(quarter, column_) + four_ * 4);
      s[0] = quarter == 0 ? part.x : s[0] + part.x;
      s[1] = quarter == 0 ? part.y : s[1] + part.y;
      s[2] = quarter == 0 ? part.z : s[2] + part.z;
      s[3] = quarter == 0 ? part.w : s[3] + part.w;
    }
  }

  // Raw scores of tokens from `token` on as base-2 logits, -inf where the column does not see them.
  __device__ __forceinline__ void to_logits(int token, float (&s)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] *= factor_;
    if (p_.soft_cap != 0.f) {
      // Seldom asked for: the four take turns in one body of tanh.
#pragma unroll 1
      for (int turn = 0; turn < 4; ++turn) {
        const float capped = cap(p_, s[0]);
        s[0] = s[1];
        s[1] = s[2];
        s[2] = s[3];
        s[3] = capped;
      }
    }
    if (p_.alibi_slopes != nullptr) {
      const float slope = slope_of(p_, head_);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[i] = add_slope(slope, static_cast<float>(token + i - position_), s[i]);
    }
    // Of positions of the query less those of keys; that of a key behind it is in no window.
    const auto window = static_cast<uint32_t>(min(p_.sliding_window, int64_t{INT32_MAX}));
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (static_cast<uint32_t>(position_ - token - i) >= window) s[i] = -INFINITY;
  }

  const PagedAttentionParams& p_;
  float factor_;
  int column_;    // of the block's
  int four_;      // of a tile's tokens
  int position_;  // of the query
  int head_;
  float max_ = kUnseen;
  float sum_ = 0.f;
  ColumnState total_;
};

template <typename T, int kGroups, int kStages>
__global__ void __launch_bounds__(LatentShape<T, kGroups, kStages>::kThreads, 2 / kGroups)
    attention_latent_kernel(const PagedAttentionParams p, const AttentionItem* items,
                            PartialResults partials) {
  begin_kernel();
  using Shape = LatentShape<T, kGroups, kStages>;
  QUIRE_DYNAMIC_SHARED(shared);
  auto* const scores = reinterpret_cast<float*>(shared + kStages * Shape::kStageBytes);
  char* const weights = reinterpret_cast<char*>(scores) + Shape::kScoreBytes;
  auto& columns = *reinterpret_cast<LatentColumns<Shape::kColumns>*>(weights + Shape::kWeightBytes);
  const AttentionItem item = items[blockIdx.x];
  if (item.seq == kNoWork) return;
  const ItemBounds bounds(p, item, Shape::kColumns);
  const LatentCopies<T, Shape> copies(p, item, bounds, shared);
  constexpr int kTilesOfPartition = kPartitionTokens / kLatentTokens;
  int tile = max(item.partition_begin * kTilesOfPartition, bounds.keys_begin / kLatentTokens);
  const int tiles_end = min(item.partition_end * kTilesOfPartition,
                            (bounds.keys_end + kLatentTokens - 1) / kLatentTokens);
  const auto copy = [&](int next, int stage) {
    if (next < tiles_end) copies.begin(next, stage);
    ptx::async_commit();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) copy(tile + i, i * Shape::kStageBytes);
  const LatentScores<T, Shape> keys(p, item, bounds);
  LatentWeights<T, Shape> states(p, item, bounds);
  LatentValues<T, Shape> values;
  // Whether partitions are merged here, or by the merge.
  const bool merges = item.slot < 0 || item.is_prefix != 0;
  int row = item.slot * Shape::kColumns;  // of the partial results; below 0 for the output

  int stage = 0;  // of the tile to take: its first byte
  int free_stage = (kStages - 1) * Shape::kStageBytes;
  for (int partition = item.partition_begin; partition < item.partition_end; ++partition) {
    const int partition_end = min((partition + 1) * kTilesOfPartition, tiles_end);
    for (; tile < partition_end; ++tile) {
      ptx::async_wait<kStages - 2>();
      __syncthreads();  // the tile is there; the free stage, weights and factors have been read
      copy(tile + kStages - 1, free_stage);
      keys.multiply(shared + stage, scores);
      __syncthreads();  // scores are there
      states.weigh(tile, scores, weights, columns);
      __syncthreads();  // weights are there
      values.add(shared + stage, weights, columns.factor);
      free_stage = stage;
      stage = stage == (kStages - 1) * Shape::kStageBytes ? 0 : stage + Shape::kStageBytes;
    }
    states.end_partition(merges, partials, row, columns);
    if (merges) {
      __syncthreads();  // factors are there
      values.merge(columns.merge);
    } else {
      values.store(partials.acc + int64_t{row} * kLatentValueSize);
      row += Shape::kColumns;
    }
  }
  ptx::async_wait<0>();
  if (!merges) return;
  if (row >= 0) {
    states.store_total(partials, row);
    values.store_total(partials.acc + int64_t{row} * kLatentValueSize);
    return;
  }
  __syncthreads();  // the last factors have been read
  states.show_total(columns);
  __syncthreads();  // totals are there
  values.write(p, items[blockIdx.x], columns.merge);
}

}  // namespace quire::cuda
