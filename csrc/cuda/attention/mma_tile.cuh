// A warp's columns of attention on tensor cores, and what they take of a tile of 16 tokens.
#pragma once

#include <cstring>
#include <type_traits>

#include "cuda/attention/mma_operands.cuh"

namespace quire::cuda {

// Some columns of one kv head, their softmax states and weighted values, in registers.
template <typename T, typename Cached, int kHeadSize, int kColumnTiles>
class WarpColumns {
 public:
  using Shape = TileShape<Cached, kHeadSize>;
  using Operands = MmaOperands<T, Cached>;
  using Element = typename Operands::Element;
  static constexpr int kColumns = 8 * kColumnTiles;
  static constexpr bool kIsQuantised = !std::is_same_v<T, Cached>;

  // `column` is the first of them, of the item's sequence.
  template <typename Bounds>
  __device__ WarpColumns(const PagedAttentionParams& p, const AttentionItem& item,
                         const Bounds& bounds, int column)
      : lane_(threadIdx.x % kWarpSize),
        p_(p),
        factor_(score_factor(p)),
        window_(static_cast<uint32_t>(min(p.sliding_window, int64_t{INT32_MAX}))),
        rows_(Operands::template rows<Shape>(lane_)) {
    load_queries(item, bounds, column);
    reset();
  }

  // Takes a tile, whose keys and values lie in shared memory. `sees_all`: every column sees every
  // token of it.
  __device__ void take(int tile, const char* key_tile, const char* value_tile, bool sees_all) {
    float scores[1][kColumnTiles][4] = {};
    multiply_keys<1>({key_tile}, scores);
#pragma unroll
    for (int g = 0; g < kColumnTiles; ++g) score(g, tile, sees_all, scores[0][g]);
    float largest[1][kColumnTiles][2];
    find_largest<1>(scores, largest);
    uint32_t probabilities[1][kColumnTiles][2];
#pragma unroll
    for (int g = 0; g < kColumnTiles; ++g)
      weigh(g, scores[0][g], largest[0][g], probabilities[0][g]);
    add_values<1>({value_tile}, probabilities);
  }

  // Takes two tiles, the second behind the first, of which every column sees every token; only
  // where scores are nothing but products (`is_plain`). Most tiles move no maximum: then the steps
  // of one are done while those of the other are waited for.
  __device__ void take_two(const char* const (&key_tiles)[2], const char* const (&value_tiles)[2]) {
    float scores[2][kColumnTiles][4] = {};
    multiply_keys<2>(key_tiles, scores);
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int g = 0; g < kColumnTiles; ++g) scale(g, scores[t][g]);
    float largest[2][kColumnTiles][2];
    find_largest<2>(scores, largest);
    bool moves = false;
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int g = 0; g < kColumnTiles; ++g)
        moves |= largest[t][g][0] > max_[g][0] || largest[t][g][1] > max_[g][1];
    uint32_t probabilities[2][kColumnTiles][2];
    if (__any_sync(kFullMask, moves)) {
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        uint32_t of_tile[1][kColumnTiles][2];
#pragma unroll
        for (int g = 0; g < kColumnTiles; ++g) weigh(g, scores[t][g], largest[t][g], of_tile[0][g]);
        add_values<1>({value_tiles[t]}, of_tile);
      }
      return;
    }
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int g = 0; g < kColumnTiles; ++g) weigh_behind(g, scores[t][g], probabilities[t][g]);
    add_values<2>(value_tiles, probabilities);
  }

  // Starts anew, as if no tile had been taken.
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

  // The sum of a column's weights, of all lanes.
  __device__ float sum_of(int g, int j) const {
    float sum = sum_[g][j];
#pragma unroll
    for (int flipped = 4; flipped < kWarpSize; flipped *= 2)
      sum += __shfl_xor_sync(kFullMask, sum, flipped);
    return sum;
  }

 protected:
  int lane_;
  // Of columns lane % 4 * 2 + j of each eight: largest logit, and the lane's part of the sum.
  float max_[kColumnTiles][2];
  float sum_[kColumnTiles][2];
  // Weighted values of columns j = i % 2, elements Operands::value_element(lane, i / 2) of each 16.
  float acc_[kColumnTiles][Shape::kSteps][4];

 private:
  // Queries as the right operand, straight from memory; zeros for columns that are not there.
  template <typename Bounds>
  __device__ void load_queries(const AttentionItem& item, const Bounds& bounds, int first) {
#pragma unroll
    for (int g = 0; g < kColumnTiles; ++g) {
      const int column = first + g * 8 + lane_ / 4;
      const bool exists = column < bounds.num_columns;
      const T* q = bounds.template address<const T>(p_.query, item.kv_head, exists ? column : 0);
#pragma unroll
      for (int step = 0; step < Shape::kSteps; ++step)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          query_[g][step][i] = exists ? *reinterpret_cast<const uint32_t*>(
                                            q + step * 16 + Operands::query_element(lane_, i))
                                      : 0u;
        }
      if constexpr (kIsQuantised) {
        const float inverse = convert_query(g);
        const float key_scale = head_scale(p_.key_scales, item.kv_head);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float of_column = __shfl_sync(kFullMask, inverse, (lane_ % 4 * 2 + j) * 4);
          score_scale_[g][j] = of_column * key_scale;
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int own = first + g * 8 + lane_ % 4 * 2 + j;
        const bool own_exists = own < bounds.num_columns;
        position_[g][j] = own_exists ? bounds.position(own) : -1;
        slope_[g][j] =
            own_exists ? slope_of(p_, item.kv_head * bounds.group + own % bounds.group) : 0.f;
      }
    }
  }

  // The queries of a tile of columns as operands of another type. Returns what scores of the lane's
  // column are to be multiplied by.
  __device__ float convert_query(int g) {
    if constexpr (std::is_same_v<T, Element>) {
      return 1.f;
    } else {
      float largest = 0.f;
#pragma unroll
      for (int step = 0; step < Shape::kSteps; ++step)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            largest = fmaxf(largest, fabsf(unpack(query_[g][step][i], half)));
      largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 2));
      const PowerOfTwo scale(largest);
#pragma unroll
      for (int step = 0; step < Shape::kSteps; ++step)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t pair = query_[g][step][i];
          query_[g][step][i] =
              pack_pair<Element>(unpack(pair, 0) * scale.factor, unpack(pair, 1) * scale.factor);
        }
      return scale.inverse;
    }
  }

  static __device__ float unpack(uint32_t pair, int half) {
    const auto bits = static_cast<uint16_t>(pair >> 16 * half);
    T element;
    memcpy(&element, &bits, sizeof element);
    return to_float(element);
  }

  // Adds the products of keys and queries: of a lane's tokens lane / 4 and lane / 4 + 8 and two
  // columns.
  template <int kTiles>
  __device__ __forceinline__ void multiply_keys(const char* const (&tiles)[kTiles],
                                                float (&scores)[kTiles][kColumnTiles][4]) const {
    constexpr int kStepsOfLoad = Operands::kStepsOfLoad;
#pragma unroll
    for (int step = 0; step < Shape::kSteps; step += kStepsOfLoad) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        uint32_t k[kStepsOfLoad][4];
        Operands::template load_keys<Shape>(k, tiles[t] + rows_.keys, rows_, step / kStepsOfLoad);
#pragma unroll
        for (int s = 0; s < kStepsOfLoad && step + s < Shape::kSteps; ++s)
#pragma unroll
          for (int g = 0; g < kColumnTiles; ++g)
            ptx::multiply_add<Element>(scores[t][g], k[s], query_[g][step + s]);
      }
    }
  }

  // Adds the values of tiles in order, weighted.
  template <int kTiles>
  __device__ __forceinline__ void add_values(
      const char* const (&tiles)[kTiles],
      const uint32_t (&probabilities)[kTiles][kColumnTiles][2]) {
    constexpr int kStepsOfLoad = Operands::kStepsOfLoad;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int step = 0; step < Shape::kSteps; step += kStepsOfLoad) {
        uint32_t v[kStepsOfLoad][4];
        Operands::template load_values<Shape>(v, tiles[t] + rows_.values, rows_,
                                              step / kStepsOfLoad);
#pragma unroll
        for (int s = 0; s < kStepsOfLoad && step + s < Shape::kSteps; ++s)
#pragma unroll
          for (int g = 0; g < kColumnTiles; ++g)
            ptx::multiply_add<Element>(acc_[g][step + s], v[s], probabilities[t][g]);
      }
    }
  }

  __device__ __forceinline__ void scale(int g, float (&s)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kIsQuantised) s[i] *= score_scale_[g][i % 2];
      s[i] *= factor_;
    }
  }

  // Products become scores, -inf of tokens that a column does not see.
  __device__ __forceinline__ void score(int g, int tile, bool sees_all, float (&s)[4]) const {
    const int token = tile * kTileTokens + lane_ / 4;
    scale(g, s);
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
    int ages[4];  // positions of the query less those of the keys
#pragma unroll
    for (int i = 0; i < 4; ++i) ages[i] = position_[g][i % 2] - token - i / 2 * 8;
    if (p_.alibi_slopes != nullptr) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[i] = add_slope(slope_[g][i % 2], static_cast<float>(-ages[i]), s[i]);
    }
    if (!sees_all) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (static_cast<uint32_t>(ages[i]) >= window_) s[i] = -INFINITY;
      }
    }
  }

  // The largest scores of tiles in each of a lane's columns.
  template <int kTiles>
  static __device__ __forceinline__ void find_largest(
      const float (&scores)[kTiles][kColumnTiles][4], float (&largest)[kTiles][kColumnTiles][2]) {
    constexpr int kCount = kTiles * kColumnTiles * 2;
    float found[kCount], others[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float (&s)[4] = scores[i / 2 / kColumnTiles][i / 2 % kColumnTiles];
      found[i] = fmaxf(s[i % 2], s[i % 2 + 2]);
    }
    // All of a level before the next: a shuffle takes as long as several others.
#pragma unroll
    for (int flipped = 4; flipped < kWarpSize; flipped *= 2) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) others[i] = __shfl_xor_sync(kFullMask, found[i], flipped);
#pragma unroll
      for (int i = 0; i < kCount; ++i) found[i] = fmaxf(found[i], others[i]);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      largest[i / 2 / kColumnTiles][i / 2 % kColumnTiles][i % 2] = found[i];
  }

  // Scores of 16 tokens and 8 columns become probabilities, as the right operand of the next
  // product.
  __device__ __forceinline__ void weigh(int g, float (&s)[4], const float (&largest)[2],
                                        uint32_t (&probabilities)[2]) {
    // Most tiles move no maximum; then there is nothing to rescale.
    if (__any_sync(kFullMask, largest[0] > max_[g][0] || largest[1] > max_[g][1])) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float max = fmaxf(max_[g][j], largest[j]);
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
    weigh_behind(g, s, probabilities);
  }

  // The same of a tile that moves no maximum.
  __device__ __forceinline__ void weigh_behind(int g, float (&s)[4], uint32_t (&probabilities)[2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] = ptx::exp2(s[i] - max_[g][i % 2]);
      sum_[g][i % 2] += s[i];
    }
    probabilities[0] = ptx::transpose(pack_pair<Element>(s[0], s[1]));
    probabilities[1] = ptx::transpose(pack_pair<Element>(s[2], s[3]));
  }

  const PagedAttentionParams& p_;
  float factor_;     // of scores
  uint32_t window_;  // ages below it are seen; that of a key behind the query is none of them
  LaneRows<Shape> rows_;
  uint32_t query_[kColumnTiles][Shape::kSteps][2];
  int position_[kColumnTiles][2];  // of the query of each column that the lane has scores of
  float slope_[kColumnTiles][2];
  float score_scale_[kColumnTiles][2];  // quantised caches only
};

}  // namespace quire::cuda
