// A block's tile of a layer whose weights have 8 or 4 bits: they become those of T in registers,
// each (integer - zero) * scale or e4m3 * scale in float32, rounded once, on their way to the
// tensor core. Everything else is linear.cuh's, so that the bits are those of a layer of the
// dequantised weights.
//
// Weights lie in memory as the tensor core's lanes take them: a lane reads 16 bytes (8 of 4-bit
// weights) for every 32 elements of K, beside those of its neighbours. An integer n becomes a float
// by its bits alone: those of 2^23 + n have n at their end. An e4m3 is exact in float16.
#pragma once

#include "cuda/e4m3.h"
#include "cuda/linear/linear.cuh"

namespace quire::cuda {

// A LinearShape with integers of `kBits_` bits.
template <typename Base, int kBits_>
struct WeightOnlyShape : Base {
  static constexpr int kBits = kBits_;
  static constexpr bool kIsFloat = false;
  static constexpr int kBlocks = Base::kRows >= 64 ? 2 : 3;  // more would not live in registers
  static constexpr int kTiles = Base::kFeatures / static_cast<int>(kOperandFeatures);
  // Of a tile of 16 features: its weights, then scales and zeros of up to two groups.
  static constexpr int kFragmentBytes =
      static_cast<int>(kOperandFeatures) * Base::kStep * kBits / 8;
  static constexpr int kGroupBytes = static_cast<int>(kOperandFeatures * sizeof(float2));
  static constexpr int kTileBytes = kFragmentBytes + 2 * kGroupBytes;
  static constexpr int kStageBytes = kTiles * kTileBytes + Base::kRows * Base::kStepBytes;
  static constexpr int kSharedBytes = Base::kStages * kStageBytes > Base::kResultBytes
                                          ? Base::kStages * kStageBytes
                                          : Base::kResultBytes;
  static_assert(Base::kStep == kOperandStep);
};

// With weights of e4m3.
template <typename Base>
struct Float8Shape : WeightOnlyShape<Base, 8> {
  static constexpr bool kIsFloat = true;
};

// Of many rows each warp has all of them: weights are dequantised once.
template <typename T>
using WholeRowsOf64 = LinearShape<T, 64, 64, 4, 1, 4>;

// Both operands are copied 16 bytes at a time. `kIsCut`: K has several parts. `kGathers`: rows of x
// are those of a list, or if that is null those from `row` on.
template <typename Shape_, bool kIsCut, bool kGathers = false>
class WeightOnlyTile {
 public:
  using Shape = Shape_;
  using Params = WeightOnlyLinearParams;
  using T = typename Shape::Element;

  // As of LinearTile.
  __device__ WeightOnlyTile(const Params& p, int64_t feature, int64_t row, char* stages, int part,
                            int first, const int32_t* gathered_rows = nullptr)
      : part_length_(static_cast<int>(p.in_features) / static_cast<int>(p.num_parts)),
        num_steps_(static_cast<int>(p.num_parts) *
                   ((part_length_ + Shape::kStep - 1) / Shape::kStep)),
        num_groups_(static_cast<int>(p.in_features / p.group_size)),
        log2_group_(log2_of(p.group_size)),
        num_tiles_((p.out_features - feature + kOperandFeatures - 1) / kOperandFeatures),
        num_rows_(p.num_rows - row),
        x_stride_(p.x_stride),
        fragments_(static_cast<const char*>(p.weight) +
                   feature / kOperandFeatures * num_steps_ * Shape::kFragmentBytes),
        groups_(static_cast<const char*>(p.scales) +
                feature / kOperandFeatures * num_groups_ * Shape::kGroupBytes),
        x_(static_cast<const T*>(p.x) + (kGathers ? 0 : row * p.x_stride)),
        next_k_(part * part_length_ + first * Shape::kStep),
        part_end_((part + 1) * part_length_),
        stages_(stages),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        warp_(static_cast<int>(threadIdx.x) / kWarpSize) {
    if constexpr (kGathers) {
#pragma unroll
      for (int i = 0; i < kNumGathered; ++i) {
        const int64_t at = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / kChunks;
        const int64_t position = row + (at < num_rows_ ? at : 0);
        gathered_[i] =
            gathered_rows == nullptr ? static_cast<int32_t>(position) : gathered_rows[position];
      }
    }
  }

  // Begins to copy the next step of both operands into the stage of `step`; x is zero beyond the
  // end of its part, where weights are padding.
  __device__ void copy(int step) {
    char* stage = stage_of(step);
    copy_fragments(step, stage);
    copy_groups(stage);
    copy_x(stage + Shape::kTiles * Shape::kTileBytes);
    next_k_ += Shape::kStep;
    if (kIsCut && next_k_ >= part_end_) {
      next_k_ = part_end_;
      part_end_ += part_length_;
    }
  }

  // As of LinearTile.
  __device__ void begin(int, LinearSums<Shape>&) const {}

  // Adds the products of a step, k by k.
  __device__ void multiply(int step, LinearSums<Shape>& sums) const {
    static_assert(Shape::kFeatureTiles == 1, "a warp has 16 features");
    const char* tile = stage_of(step) + first_feature() / 16 * Shape::kTileBytes;
    const char* x =
        stage_of(step) + Shape::kTiles * Shape::kTileBytes + first_row() * Shape::kStepBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Groups of 32 end within a step.
      const char* group = tile + Shape::kFragmentBytes +
                          (log2_group_ == 5 ? half : 0) * Shape::kGroupBytes +
                          lane_ / 4 * sizeof(float2);
      const float2 scales[2] = {*reinterpret_cast<const float2*>(group),
                                *reinterpret_cast<const float2*>(group + 8 * sizeof(float2))};
      uint32_t words[2][kWords];
      load_words(tile, half, words);
      uint32_t a[2][4];
      dequantise(words[0], scales, a[0]);
      dequantise(words[1], scales, a[1]);
      // Chunks of every eighth row are swapped alike.
      const char* place = x + Shape::offset(lane_ % 8, half * 4 + lane_ / 8);
#pragma unroll
      for (int g = 0; g < Shape::kRowTiles; ++g) {
        uint32_t b[4];
        ptx::load_matrices(b, place + g * 8 * Shape::kStepBytes);
        ptx::multiply_add<T>(sums.of[0][g], a[0], {b[0], b[1]});
        ptx::multiply_add<T>(sums.of[0][g], a[1], {b[2], b[3]});
      }
    }
  }

  // The place of the calling warp in the tile.
  __device__ int first_feature() const {
    return warp_ / Shape::kRowWarpCount * Shape::kFeatureTiles * 16;
  }
  __device__ int first_row() const { return warp_ % Shape::kRowWarpCount * Shape::kRowTiles * 8; }

 private:
  static constexpr int kWords = Shape::kBits / 4;         // of a lane, for 16 elements of K
  static constexpr uint32_t kTwoTo23 = 0x4b000000;        // as a float
  static constexpr int kChunks = Shape::kStepBytes / 16;  // of a row of x
  // Rows that the block copies at once; and those of a thread, if they are gathered.
  static constexpr int kRowsAtOnce = Shape::kThreads / kChunks;
  static constexpr int kNumGathered = kGathers ? (Shape::kRows + kRowsAtOnce - 1) / kRowsAtOnce : 1;

  __device__ char* stage_of(int step) const {
    return stages_ + step % Shape::kStages * Shape::kStageBytes;
  }

  __device__ void copy_fragments(int step, char* stage) const {
    constexpr int kChunks = Shape::kFragmentBytes / 16;
#pragma unroll
    for (int first = 0; first < Shape::kTiles * kChunks; first += Shape::kThreads) {
      const int i = first + static_cast<int>(threadIdx.x);
      if (Shape::kTiles * kChunks % Shape::kThreads != 0 && i >= Shape::kTiles * kChunks) break;
      const int tile = i / kChunks;
      const int at = i % kChunks * 16;
      ptx::async_copy_16(
          stage + tile * Shape::kTileBytes + at,
          fragments_ + (int64_t{tile} * num_steps_ + step) * Shape::kFragmentBytes + at,
          tile < num_tiles_);
    }
  }

  __device__ void copy_groups(char* stage) const {
    constexpr int kChunks = Shape::kGroupBytes / 16;
    static_assert(Shape::kTiles * 2 * kChunks <= Shape::kThreads);
    const int log2_count = log2_group_ == 5 ? 1 : 0;
    const int i = static_cast<int>(threadIdx.x);
    if (i >= Shape::kTiles * kChunks << log2_count) return;
    const int tile = i / kChunks >> log2_count;
    const int which = i / kChunks & log2_count;
    const int at = i % kChunks * 16;
    // Of padding the last group's.
    const int group = min(next_k_ + which * 32, part_end_ - 1) >> log2_group_;
    ptx::async_copy_16(
        stage + tile * Shape::kTileBytes + Shape::kFragmentBytes + which * Shape::kGroupBytes + at,
        groups_ + (int64_t{tile} * num_groups_ + group) * Shape::kGroupBytes + at,
        tile < num_tiles_);
  }

  __device__ void copy_x(char* to) const {
    const int chunk = static_cast<int>(threadIdx.x) % kChunks;
    const int k = next_k_ + chunk * Pack<T>::kSize;
#pragma unroll
    for (int first = 0; first < Shape::kRows; first += kRowsAtOnce) {
      const int row = first + static_cast<int>(threadIdx.x) / kChunks;
      if (Shape::kRows % kRowsAtOnce != 0 && row >= Shape::kRows) break;
      const int64_t from = kGathers ? gathered_[first / kRowsAtOnce] : row;
      ptx::async_copy_16(to + Shape::offset(row, chunk), x_ + from * x_stride_ + k,
                         row < num_rows_ && k < part_end_);
    }
  }

  // What the lane takes of two times 16 elements of K.
  __device__ void load_words(const char* tile, int half, uint32_t (&words)[2][kWords]) const {
    const char* place = tile + (half * kWarpSize + lane_) * 8 * kWords;
    if constexpr (Shape::kBits == 8) {
      const auto four = *reinterpret_cast<const uint4*>(place);
      words[0][0] = four.x, words[0][1] = four.y, words[1][0] = four.z, words[1][1] = four.w;
    } else {
      const auto two = *reinterpret_cast<const uint2*>(place);
      words[0][0] = two.x, words[1][0] = two.y;
    }
  }

  // The operand of 16 features and 16 elements of K, of which `words` have two pairs of the lane's
  // first feature and two of its second.
  static __device__ void dequantise(const uint32_t (&words)[kWords], const float2 (&scales)[2],
                                    uint32_t (&a)[4]) {
    if constexpr (Shape::kIsFloat) {
#pragma unroll
      for (int feature = 0; feature < 2; ++feature) {
        uint32_t pairs[2];
        ptx::widen_e4m3(words[feature], pairs[0], pairs[1]);
        a[feature] = scaled(pairs[0], scales[feature].x);
        a[feature + 2] = scaled(pairs[1], scales[feature].x);
      }
    } else {
      dequantise_integers(words, scales, a);
    }
  }

  // Two float16 times a scale.
  static __device__ uint32_t scaled(uint32_t pair, float scale) {
    f16 halves[2];
    memcpy(halves, &pair, sizeof pair);
    const T elements[2] = {from_float<T>(to_float(halves[0]) * scale),
                           from_float<T>(to_float(halves[1]) * scale)};
    uint32_t result;
    memcpy(&result, elements, sizeof result);
    return result;
  }

  static __device__ void dequantise_integers(const uint32_t (&words)[kWords],
                                             const float2 (&scales)[2], uint32_t (&a)[4]) {
    // Those of 4 bits are cut apart first, four at a time.
    const uint32_t halves[2] = {words[0] & 0x0f0f0f0f, words[0] >> 4 & 0x0f0f0f0f};
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const float2& scale = scales[pair / 2];
      T elements[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const uint32_t four = Shape::kBits == 8 ? words[pair / 2 % kWords] : halves[e];
        const int byte = Shape::kBits == 8 ? pair % 2 * 2 + e : pair;
        const float integer = __uint_as_float(__byte_perm(kTwoTo23, four, 0x3104 + byte));
        elements[e] = from_float<T>((integer - scale.y) * scale.x);
      }
      // Pairs come feature by feature, registers k by k.
      memcpy(&a[pair % 2 * 2 + pair / 2], elements, sizeof elements);
    }
  }

  int part_length_;
  int num_steps_;
  int num_groups_;
  int log2_group_;
  int64_t num_tiles_;  // of 16 features that exist, from the tile's first
  int64_t num_rows_;   // that exist, from the tile's first
  int64_t x_stride_;
  const char* fragments_;
  const char* groups_;
  const T* x_;
  int next_k_;
  int part_end_;
  int32_t gathered_[kNumGathered];
  char* stages_;
  int lane_;
  int warp_;
};

template <typename Shape, bool kIsCut>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    weight_only_kernel(const WeightOnlyLinearParams p, const LinearGrid grid,
                       const SplitResults results) {
  begin_kernel();
  QUIRE_DYNAMIC_SHARED(shared);
  compute_tiles<WeightOnlyTile<Shape, kIsCut>, kIsCut>(p, grid, results, shared);
}

}  // namespace quire::cuda
