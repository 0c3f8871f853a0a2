// The columns of a warpgroup in attention of prompts: 64 query heads in rows, their softmax states
// and weighted values, in registers.
//
// S = Q K^T and O = P V, where columns are rows of the products: so a lane has weights of the
// tokens of which a lane of mma_tile.cuh has them, of two columns, as the left operand of the next
// product. Sums of weights are split among lanes as there, and so have the same bits.
#pragma once

#include "cuda/attention/warpgroup_shape.cuh"
#include "cuda/warpgroup.h"

namespace quire::cuda {

template <typename T, int kHeadSize, typename Bounds>
class WarpgroupColumns {
 public:
  using Shape = WarpgroupPromptShape<T, kHeadSize>;
  static constexpr int kTiles = Shape::kTilesOfStage;
  static constexpr int kFours = Shape::kFours;

  // `first` is the warpgroup's first column; its queries are stored in `queries`, for products
  // behind a barrier, and what all partitions come to in `total`, both of its own.
  __device__ WarpgroupColumns(const PagedAttentionParams& p, const AttentionItem& item,
                              const Bounds& bounds, int first, char* queries, float4* total)
      : p_(p),
        item_(item),
        bounds_(bounds),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        column_(first + static_cast<int>(threadIdx.x) % Shape::kGroupThreads / kWarpSize * 16 +
                lane_ / 4),
        factor_(score_factor(p)),
        window_(static_cast<uint32_t>(min(p.sliding_window, int64_t{INT32_MAX}))),
        queries_(queries),
        total_(total) {
    store_queries(first);
    const int last = min(first + Shape::kGroupColumns, bounds.num_columns) - 1;
    const bool exists = first <= last;
    seen_from_ = bounds.first_key(p.sliding_window, first);
    seen_end_ = exists ? bounds.end_of_keys(last) : 0;
    all_see_from_ = bounds.first_key(p.sliding_window, last);
    all_see_end_ = exists ? bounds.end_of_keys(first) : 0;
    is_plain_ = p.soft_cap == 0.f && p.alibi_slopes == nullptr;
#pragma unroll
    for (int g = 0; g < kFours; ++g)
#pragma unroll
      for (int i = 0; i < 4; ++i) part_[g][i] = 0.f;
    reset();
  }

  // Whether a column may see any of a stage, whose first tile this is.
  __device__ __forceinline__ bool sees_any(int tile) const {
    return tile * kTileTokens < seen_end_ && end_of_stage(tile) > seen_from_;
  }

  // Finds the scores of a stage, and the largest of each tile.
  __device__ __forceinline__ void score(int tile, const char* keys) {
#pragma unroll
    for (int g = 0; g < 2 * kTiles; ++g)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores_[g][i] = 0.f;
    const uint64_t queries = ptx::describe_rows(queries_);
    const uint64_t of_keys = ptx::describe_rows(keys);
    ptx::hold_sums(scores_);
    ptx::begin_products();
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      const int place = step / Shape::kStepsOfPiece * Shape::kPieceBytes +
                        step % Shape::kStepsOfPiece * Shape::kStepBytes;
      ptx::WarpgroupProduct<T, 2 * kTiles>::begin(scores_, ptx::matrix_behind(queries, place),
                                                  ptx::matrix_behind(of_keys, place));
    }
    ptx::commit_products();
    ptx::wait_for_products<0>();
    ptx::hold_sums(scores_);
    is_seen_by_all_ = tile * kTileTokens >= all_see_from_ && end_of_stage(tile) <= all_see_end_;
    if (is_plain_ && is_seen_by_all_) {
#pragma unroll
      for (int g = 0; g < 2 * kTiles; ++g)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores_[g][i] *= factor_;
    } else {
      score_with_care(tile);
    }
    find_largest();
  }

  // Adds the values of the stage, tile by tile: while those of one are multiplied, the weights of
  // the next are found.
  __device__ __forceinline__ void add(int tile, const char* values) {
    uint32_t weights[2][4] = {};  // in turn
    const uint64_t of_values = ptx::describe_columns(values, Shape::kPieceBytes);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (!is_seen_by_all_ && !sees(tile + t * kMmaWarps)) continue;
      const bool moves = weigh(t, weights[t % 2]);
      if (t > 0) finish_products(weights);
      if (moves && has_values_) {
#pragma unroll
        for (int g = 0; g < kFours; ++g)
#pragma unroll
          for (int i = 0; i < 4; ++i) acc_[g][i] *= rescaling_[i / 2];
      }
      has_values_ = true;
      ptx::hold_sums(acc_);
      ptx::begin_products();
      ptx::RegisterProduct<T, kFours>::begin(
          acc_, weights[t % 2], ptx::matrix_behind(of_values, t * kTileTokens * Shape::kRowBytes));
      ptx::commit_products();
    }
    finish_products(weights);
  }

  // Merges what was taken since the last call, a class of the partition, with the classes before;
  // the last class's with the partitions before, or else stores the partition's in rows of
  // `partials`.
  __device__ __forceinline__ void merge_class(bool is_last, bool merges,
                                              const PartialResults& partials, int64_t row) {
    MergeFactors factors[2];
    MergeFactors of_partition[2] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      factors[j] = state_[j].merge(max_[j], sum_of(j));
      if (!is_last) continue;
      if (merges) {
        of_partition[j] = total_state_[j].merge(state_[j].max, state_[j].sum);
      } else {
        store_state(partials, row, j, state_[j]);
      }
      state_[j] = {};
    }
#pragma unroll
    for (int g = 0; g < kFours; ++g) {
      float merged[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) merged[i] = merge_values(part_[g][i], acc_[g][i], factors[i / 2]);
      if (is_last && merges) {
        float4& held = total_[g * Shape::kMultiplyingThreads];
        const float4 earlier = has_total_ ? held : float4{0.f, 0.f, 0.f, 0.f};
        held = {merge_values(earlier.x, merged[0], of_partition[0]),
                merge_values(earlier.y, merged[1], of_partition[0]),
                merge_values(earlier.z, merged[2], of_partition[1]),
                merge_values(earlier.w, merged[3], of_partition[1])};
      } else if (is_last) {
        store(partials, row, g, {merged[0], merged[1], merged[2], merged[3]});
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) part_[g][i] = is_last ? 0.f : merged[i];
    }
    has_total_ |= is_last;
    reset();
  }

  // Stores what all partitions came to in rows of `partials`, unless the warpgroup has no column.
  __device__ __forceinline__ void store_total(const PartialResults& partials, int64_t row) const {
    if (seen_end_ == 0) return;
#pragma unroll
    for (int j = 0; j < 2; ++j) store_state(partials, row, j, total_state_[j]);
#pragma unroll 1
    for (int g = 0; g < kFours; ++g) store(partials, row, g, held_of(g));
  }

  // Writes the results.
  __device__ __forceinline__ void write() const {
    const float value_scale = head_scale(p_.value_scales, item_.kv_head);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = column_ + j * 8;
      if (column >= bounds_.num_columns) continue;
      T* out = bounds_.template address<T>(p_.out, item_.kv_head, column);
      ColumnState total = total_state_[j];
      const float factor = total.add_sink(p_, bounds_.head(item_.kv_head, column));
#pragma unroll 1
      for (int g = 0; g < kFours; ++g) {
        const float4 four = held_of(g);
        const float values[2] = {j == 0 ? four.x : four.z, j == 0 ? four.y : four.w};
#pragma unroll
        for (int i = 0; i < 2; ++i)
          out[element_of(g, i)] = from_float<T>(values[i] * factor / total.sum * value_scale);
      }
    }
  }

 private:
  // Whether a column sees any of a tile.
  __device__ __forceinline__ bool sees(int tile) const {
    return tile * kTileTokens < seen_end_ && (tile + 1) * kTileTokens > seen_from_;
  }

  static __device__ int end_of_stage(int tile) {
    return (tile + (kTiles - 1) * kMmaWarps + 1) * kTileTokens;
  }

  // Of a head: what value i % 2 of a lane's four is of.
  __device__ int element_of(int g, int i) const { return g * 8 + lane_ % 4 * 2 + i % 2; }

  __device__ float4 held_of(int g) const { return total_[g * Shape::kMultiplyingThreads]; }

  // Queries as they are to lie for products, zeros for columns that are not there. All are on their
  // way together: a column's address may be read from memory, too.
  __device__ void store_queries(int first) {
    constexpr int kChunkElements = 16 / Shape::kBytes;
    constexpr int kNumChunks = Shape::kGroupColumns * Shape::kChunks / Shape::kGroupThreads;
    const int thread = static_cast<int>(threadIdx.x) % Shape::kGroupThreads;
    const T* from[kNumChunks];
#pragma unroll
    for (int i = 0; i < kNumChunks; ++i) {
      const int chunk = thread + i * Shape::kGroupThreads;
      const int column = min(first + chunk / Shape::kChunks, bounds_.num_columns - 1);
      from[i] = bounds_.template address<const T>(p_.query, item_.kv_head, column) +
                chunk % Shape::kChunks * kChunkElements;
    }
    uint32_t pairs[kNumChunks][4];
#pragma unroll
    for (int i = 0; i < kNumChunks; ++i)
#pragma unroll
      for (int pair = 0; pair < 4; ++pair)
        pairs[i][pair] = *reinterpret_cast<const uint32_t*>(from[i] + pair * 2);
#pragma unroll
    for (int i = 0; i < kNumChunks; ++i) {
      const int row = (thread + i * Shape::kGroupThreads) / Shape::kChunks;
      const int chunk = thread % Shape::kChunks;
      const bool exists = first + row < bounds_.num_columns;
      char* to = queries_ + Shape::offset(row, chunk % 8) + Shape::behind(chunk);
      *reinterpret_cast<uint4*>(to) = {exists ? pairs[i][0] : 0u, exists ? pairs[i][1] : 0u,
                                       exists ? pairs[i][2] : 0u, exists ? pairs[i][3] : 0u};
    }
  }

  // Of a stage in which scores are more than products, or tokens are hidden from columns.
  __device__ __forceinline__ void score_with_care(int tile) {
    int positions[2];  // of queries; that of none is before every key
    float slopes[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = column_ + j * 8;
      const bool exists = column < bounds_.num_columns;
      positions[j] = exists ? bounds_.position(column) : -1;
      slopes[j] = exists ? slope_of(p_, bounds_.head(item_.kv_head, column)) : 0.f;
    }
    // The tiles take turns in one body.
#pragma unroll 1
    for (int t = 0; t < kTiles; ++t, tile += kMmaWarps) {
      float turned[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = tile * kTileTokens + half * 8 + lane_ % 4 * 2 + i % 2;
          const int age = positions[i / 2] - token;
          float score = scores_[half][i] * factor_;
          if (p_.soft_cap != 0.f) score = cap(p_, score);
          if (p_.alibi_slopes != nullptr)
            score = add_slope(slopes[i / 2], static_cast<float>(-age), score);
          turned[half][i] = static_cast<uint32_t>(age) >= window_ ? -INFINITY : score;
        }
      }
#pragma unroll
      for (int g = 0; g < 2 * kTiles; ++g)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          scores_[g][i] =
              g + 2 < 2 * kTiles ? scores_[(g + 2) % (2 * kTiles)][i] : turned[g % 2][i];
    }
  }

  // The largest scores of each tile in each of a lane's columns.
  __device__ __forceinline__ void find_largest() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        largest_[t][j] = fmaxf(fmaxf(scores_[2 * t][2 * j], scores_[2 * t][2 * j + 1]),
                               fmaxf(scores_[2 * t + 1][2 * j], scores_[2 * t + 1][2 * j + 1]));
    // All of a level before the next: a shuffle takes as long as several others.
#pragma unroll
    for (int flipped = 1; flipped < 4; flipped *= 2) {
      float others[kTiles][2];
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          others[t][j] = __shfl_xor_sync(kFullMask, largest_[t][j], flipped);
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int j = 0; j < 2; ++j) largest_[t][j] = fmaxf(largest_[t][j], others[t][j]);
    }
  }

  // Scores of a tile become weights, as the left operand of the next product. Returns whether a
  // maximum of the warp moves: then the values so far are to be rescaled.
  __device__ __forceinline__ bool weigh(int t, uint32_t (&weights)[4]) {
    const bool moves =
        __any_sync(kFullMask, largest_[t][0] > max_[0] || largest_[t][1] > max_[1]) != 0;
    if (moves) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float max = fmaxf(max_[j], largest_[t][j]);
        rescaling_[j] = ptx::exp2(max_[j] - max);
        max_[j] = max;
        sum_[j][0] *= rescaling_[j];
        sum_[j][1] *= rescaling_[j];
      }
    }
    float w[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        w[half][i] = ptx::exp2(scores_[2 * t + half][i] - max_[i / 2]);
        sum_[i / 2][i % 2] += w[half][i];
      }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        weights[half * 2 + j] = pack_pair<T>(w[half][2 * j], w[half][2 * j + 1]);
    return moves;
  }

  // Waits for the products of values that are under way.
  __device__ __forceinline__ void finish_products(uint32_t (&weights)[2][4]) {
    ptx::wait_for_products<0>();
    ptx::hold_sums(acc_);
#pragma unroll
    for (int i = 0; i < 2; ++i) ptx::hold_operand(weights[i]);
  }

  // The sum of a column's weights, of all lanes, as that of mma_tile.cuh: a lane has what two have
  // there.
  __device__ float sum_of(int j) const {
    float sum = sum_[j][0] + sum_[j][1];
#pragma unroll
    for (int flipped = 1; flipped < 4; flipped *= 2)
      sum += __shfl_xor_sync(kFullMask, sum, flipped);
    return sum;
  }

  __device__ void store_state(const PartialResults& partials, int64_t row, int j,
                              const ColumnState& state) const {
    if (lane_ % 4 != 0) return;
    const int64_t own = row + column_ - item_.column + j * 8;
    partials.max[own] = state.max;
    partials.sum[own] = state.sum;
  }

  __device__ void store(const PartialResults& partials, int64_t row, int g,
                        const float4& four) const {
    const int64_t own = row + column_ - item_.column;
    float* acc = partials.acc + own * kHeadSize + element_of(g, 0);
    *reinterpret_cast<float2*>(acc) = {four.x, four.y};
    *reinterpret_cast<float2*>(acc + 8 * kHeadSize) = {four.z, four.w};
  }

  // Starts anew, as if no tile had been taken.
  __device__ void reset() {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      max_[j] = kUnseen;
      sum_[j][0] = sum_[j][1] = 0.f;
    }
    has_values_ = false;
#pragma unroll
    for (int g = 0; g < kFours; ++g)
#pragma unroll
      for (int i = 0; i < 4; ++i) acc_[g][i] = 0.f;
  }

  const PagedAttentionParams& p_;
  const AttentionItem& item_;
  const Bounds& bounds_;
  int lane_;
  int column_;       // the first of the lane's two; the other is the eighth behind it
  float factor_;     // of scores
  uint32_t window_;  // ages below it are seen; that of a key behind the query is none of them
  char* queries_;
  float4* total_;  // of all partitions, a thread's fours
  int seen_from_;  // tokens that a column sees lie from here to the end below
  int seen_end_;
  int all_see_from_;  // every column sees these
  int all_see_end_;
  bool is_plain_;  // scores are products, and nothing else
  bool has_total_ = false;
  bool has_values_;      // of the class: there is something to rescale
  bool is_seen_by_all_;  // of the stage: every column sees every token
  // Of 8 tokens each, as results of products: of columns i / 2, tokens lane % 4 * 2 + i % 2.
  float scores_[2 * kTiles][4];
  float largest_[kTiles][2];
  // Of the lane's columns, in the class: the largest logit, and the lane's parts of the sum, of
  // tokens lane % 4 * 2 + 0 and 1 of each 8.
  float max_[2];
  float sum_[2][2];
  float rescaling_[2];
  float acc_[kFours][4];   // weighted values of the class, elements by element_of
  float part_[kFours][4];  // of the classes before it in the partition
  ColumnState state_[2];
  ColumnState total_state_[2];
};

}  // namespace quire::cuda
