// The part of a warp in attention on tensor cores (mma.cuh).
#pragma once

#include <cstring>
#include <type_traits>

#include "cuda/attention/mma_copies.cuh"
#include "cuda/attention/mma_operands.cuh"

namespace quire::cuda {

// A warp's walk over its tiles.
template <typename T, typename Cached, int kHeadSize, int kColumnTiles, int kStages>
class WarpAttention {
 public:
  using Shape = MmaShape<Cached, kHeadSize, kColumnTiles, kStages>;
  using Operands = MmaOperands<T, Cached>;
  using Element = typename Operands::Element;
  using Copies = TileCopies<Cached, Shape>;
  static constexpr bool kIsQuantised = !std::is_same_v<T, Cached>;

  __device__ WarpAttention(const PagedAttentionParams& p, const AttentionItem& item,
                           const ItemBounds& bounds, char* pipeline)
      : p_(p),
        stages_(pipeline + threadIdx.x / kWarpSize * kStages * Copies::kStageBytes),
        warp_(threadIdx.x / kWarpSize),
        lane_(threadIdx.x % kWarpSize),
        factor_(score_factor(p)),
        window_(static_cast<uint32_t>(min(p.sliding_window, int64_t{INT32_MAX}))),
        copies_(p, item, bounds, stages_, lane_),
        rows_(Operands::template rows<Shape>(lane_)) {
    constexpr int kTilesOfPartition = kPartitionTokens / kTileTokens;
    const int first =
        max(item.partition_begin * kTilesOfPartition, bounds.keys_begin / kTileTokens);
    const int end = min(item.partition_end * kTilesOfPartition,
                        (bounds.keys_end + kTileTokens - 1) / kTileTokens);
    next_ = first + ((warp_ - first) & (kMmaWarps - 1));
    tiles_end_ = end;
    load_queries(item, bounds);
    reset();
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage)
      copy(next_ + stage * kMmaWarps, stage * Copies::kStageBytes);
  }

  // Takes its tiles up to a partition's end.
  __device__ void walk(int partition) {
    const int end = min((partition + 1) * (kPartitionTokens / kTileTokens), tiles_end_);
    for (; next_ < end; next_ += kMmaWarps) {
      copy(next_ + (kStages - 1) * kMmaWarps, free_stage_);
      ptx::async_wait<kStages - 1>();
      __syncwarp();
      take_tile();
      __syncwarp();  // the stage may be filled again
      free_stage_ = stage_;
      stage_ = stage_ == (kStages - 1) * Copies::kStageBytes ? 0 : stage_ + Copies::kStageBytes;
    }
  }

  // Writes its state of the partition to shared memory, acc as [warps, columns, kAccStride], and
  // starts the next.
  __device__ void publish(float* acc, SharedColumns<Shape::kColumns>& columns) {
    for (int g = 0; g < kColumnTiles; ++g) {
      for (int j = 0; j < 2; ++j) {
        const int column = g * 8 + lane_ % 4 * 2 + j;
        float sum = sum_[g][j];
#pragma unroll
        for (int flipped = 4; flipped < kWarpSize; flipped *= 2)
          sum += __shfl_xor_sync(kFullMask, sum, flipped);
        if (lane_ < 4) {
          columns.of_warp[warp_][column].state = {max_[g][j], sum};
        }
#pragma unroll
        for (int step = 0; step < Shape::kSteps; ++step) {
          float* row = acc + (warp_ * Shape::kColumns + column) * Shape::kAccStride + step * 16;
          row[Operands::value_element(lane_, 0)] = acc_[g][step][j];
          row[Operands::value_element(lane_, 1)] = acc_[g][step][j + 2];
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
        const int own = item.column + g * 8 + lane_ % 4 * 2 + j;
        const bool own_exists = own < bounds.num_columns;
        position_[g][j] = own_exists ? bounds.first_position + own / bounds.group : -1;
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
              pack<Element>(unpack(pair, 0) * scale.factor, unpack(pair, 1) * scale.factor);
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

  // Begins to copy a tile, if there is one, into a stage.
  __device__ void copy(int tile, int stage) {
    if (tile < tiles_end_) copies_.begin(tile, stage);
    ptx::async_commit();
  }

  __device__ void take_tile() {
    const char* keys = stages_ + stage_ + rows_.keys;
    const char* values = stages_ + stage_ + Shape::kTileBytes + rows_.values;
    constexpr int kStepsOfLoad = Operands::kStepsOfLoad;
    float scores[kColumnTiles][4] = {};
#pragma unroll
    for (int step = 0; step < Shape::kSteps; step += kStepsOfLoad) {
      uint32_t k[kStepsOfLoad][4];
      Operands::template load_keys<Shape>(k, keys, rows_, step / kStepsOfLoad);
#pragma unroll
      for (int s = 0; s < kStepsOfLoad && step + s < Shape::kSteps; ++s)
#pragma unroll
        for (int g = 0; g < kColumnTiles; ++g)
          ptx::multiply_add<Element>(scores[g], k[s], query_[g][step + s]);
    }
    uint32_t probabilities[kColumnTiles][2];
#pragma unroll
    for (int g = 0; g < kColumnTiles; ++g) softmax(g, scores[g], probabilities[g]);
#pragma unroll
    for (int step = 0; step < Shape::kSteps; step += kStepsOfLoad) {
      uint32_t v[kStepsOfLoad][4];
      Operands::template load_values<Shape>(v, values, rows_, step / kStepsOfLoad);
#pragma unroll
      for (int s = 0; s < kStepsOfLoad && step + s < Shape::kSteps; ++s)
#pragma unroll
        for (int g = 0; g < kColumnTiles; ++g)
          ptx::multiply_add<Element>(acc_[g][step + s], v[s], probabilities[g]);
    }
  }

  // Scores of 16 tokens and 8 columns become probabilities, as the right operand of the next
  // product. A lane has tokens lane / 4 and lane / 4 + 8 of two columns.
  __device__ void softmax(int g, float (&s)[4], uint32_t (&probabilities)[2]) {
    const int token = next_ * kTileTokens + lane_ / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kIsQuantised) s[i] *= score_scale_[g][i % 2];
      s[i] *= factor_;
    }
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
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = static_cast<uint32_t>(ages[i]) < window_ ? s[i] : -INFINITY;
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
    probabilities[0] = ptx::transpose(pack<Element>(s[0], s[1]));
    probabilities[1] = ptx::transpose(pack<Element>(s[2], s[3]));
  }

  template <typename U>
  static __device__ uint32_t pack(float low, float high) {
    const U pair[2] = {from_float<U>(low), from_float<U>(high)};
    uint32_t bits;
    memcpy(&bits, pair, sizeof bits);
    return bits;
  }

  const PagedAttentionParams& p_;
  char* stages_;
  int warp_;
  int lane_;
  float factor_;     // of scores
  uint32_t window_;  // ages below it are seen; that of a key behind the query is none of them
  Copies copies_;
  LaneRows<Shape> rows_;
  int stage_ = 0;  // of the tile to take: its first byte
  int free_stage_ = (kStages - 1) * Copies::kStageBytes;
  int next_;  // tile to take
  int tiles_end_;
  uint32_t query_[kColumnTiles][Shape::kSteps][2];
  int position_[kColumnTiles][2];  // of the query of each column that the lane has scores of
  float slope_[kColumnTiles][2];
  float score_scale_[kColumnTiles][2];  // quantised caches only
  float max_[kColumnTiles][2];
  float sum_[kColumnTiles][2];
  float acc_[kColumnTiles][Shape::kSteps][4];
};

}  // namespace quire::cuda
