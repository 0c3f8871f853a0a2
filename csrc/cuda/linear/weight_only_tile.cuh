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

// Of few rows copies are begun for several steps, and these multiplied, behind each barrier.
template <typename T, int kRows_, int kStages_>
struct StreamedShape : LinearShape<T, 64, kRows_, 4, 1, kStages_> {
  static constexpr int kStepsAtOnce = 2;
  static constexpr int kStepsAhead = kStages_ - kStepsAtOnce;
};
template <typename T>
using StreamedRowsOf8 = StreamedShape<T, 8, 8>;
template <typename T>
using StreamedRowsOf32 = StreamedShape<T, 32, 6>;
// Of many rows each warp has all of them: weights are dequantised once.
template <typename T>
using WholeRowsOf64 = LinearShape<T, 64, 64, 4, 1, 4>;

// A LinearShape with integers of `kBits_` bits.
template <typename Base, int kBits_>
struct WeightOnlyShape : Base {
  static constexpr int kBits = kBits_;
  static constexpr bool kIsFloat = false;
  // More would not live in registers.
  static constexpr int kBlocks = Base::kBlocks < 3 ? Base::kBlocks : (Base::kRows >= 64 ? 2 : 3);
  static constexpr int kTiles = Base::kFeatures / static_cast<int>(kOperandFeatures);
  // Of a tile of 16 features: its weights, then scales and zeros of up to two groups.
  static constexpr int kFragmentBytes =
      static_cast<int>(kOperandFeatures) * Base::kStep * kBits / 8;
  static constexpr int kGroupBytes = static_cast<int>(kOperandFeatures * sizeof(float2));
  static constexpr int kTileBytes = kFragmentBytes + 2 * kGroupBytes;
  static constexpr int kStageBytes = kTiles * kTileBytes + Base::kRows * Base::kStepBytes;
  static constexpr int kSharedBytes =
      (Base::kStages * kStageBytes > Base::kResultBytes ? Base::kStages * kStageBytes
                                                        : Base::kResultBytes) +
      Base::kSharedLevels * Base::kFeatures * Base::kRows * 4;
  static_assert(Base::kStep == kOperandStep);
};

// With weights of e4m3.
template <typename Base>
struct Float8Shape : WeightOnlyShape<Base, 8> {
  static constexpr bool kIsFloat = true;
};

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
        log2_group_(log2_of(p.group_size)),
        x_stride_(p.x_stride),
        next_k_(part * part_length_ + first * Shape::kStep),
        part_end_((part + 1) * part_length_),
        stages_(stages),
        thread_(static_cast<int>(threadIdx.x)) {
    const int part_steps = (part_length_ + Shape::kStep - 1) / Shape::kStep;
    const auto num_steps = static_cast<int>(p.num_parts) * part_steps;
    const auto num_groups = static_cast<int>(p.in_features >> log2_group_);
    const int64_t tile = feature / kOperandFeatures;
    num_tiles_ =
        static_cast<int>((p.out_features + kOperandFeatures - 1) / kOperandFeatures - tile);
    tile_bytes_ = int64_t{num_steps} * Shape::kFragmentBytes;
    next_fragment_ =
        static_cast<const char*>(p.weight) + (tile + thread_ / kFragmentChunks) * tile_bytes_ +
        int64_t{part * part_steps + first} * Shape::kFragmentBytes + thread_ % kFragmentChunks * 16;
    groups_ = static_cast<const char*>(p.scales) +
              (tile + group_tile()) * num_groups * Shape::kGroupBytes + thread_ % kGroupChunks * 16;
    num_rows_ = static_cast<int>(min(p.num_rows - row, int64_t{Shape::kRows})) - own_row();
    next_x_ = static_cast<const T*>(p.x) + (kGathers ? 0 : (row + own_row()) * p.x_stride) +
              next_k_ + own_element();
    fragments_to_ = thread_ / kFragmentChunks * Shape::kTileBytes + thread_ % kFragmentChunks * 16;
    groups_to_ = group_tile() * Shape::kTileBytes + Shape::kFragmentBytes +
                 own_group() * Shape::kGroupBytes + thread_ % kGroupChunks * 16;
    x_to_ = kXPlace + Shape::offset(own_row(), thread_ % kChunks);
    const int tile_from = first_feature() / 16 * Shape::kTileBytes;
    fragments_from_ = tile_from + lane() * 8 * kWords;
    groups_from_ =
        tile_from + Shape::kFragmentBytes + lane() / 4 * static_cast<int>(sizeof(float2));
    // Chunks of every eighth row are swapped alike.
    x_from_ = kXPlace + first_row() * Shape::kStepBytes + Shape::offset(lane() % 8, lane() / 8);
    for (int* place :
         {&fragments_to_, &groups_to_, &x_to_, &fragments_from_, &groups_from_, &x_from_})
      ptx::forget(*place);
    own_group_k_ = own_group() * 32;
    ptx::forget(own_group_k_);
    ptx::forget(groups_);
    if constexpr (kGathers) {
#pragma unroll
      for (int i = 0; i < kNumGathered; ++i) {
        const int64_t position =
            row + (i * kRowsAtOnce < num_rows_ ? i * kRowsAtOnce + own_row() : 0);
        gathered_[i] =
            gathered_rows == nullptr ? static_cast<int32_t>(position) : gathered_rows[position];
      }
    }
  }

  // Begins to copy the next step of both operands into the stage of `step`; x is zero beyond the
  // end of its part, where weights are padding.
  __device__ __forceinline__ void copy(int step) {
    char* stage = stage_of(step);
    copy_fragments(stage);
    copy_groups(stage);
    copy_x(stage);
    int passed = Shape::kStep;
    if (kIsCut && next_k_ + passed >= part_end_) {
      passed = part_end_ - next_k_;
      part_end_ += part_length_;
    }
    next_k_ += passed;
    next_x_ += passed;
    next_fragment_ += Shape::kFragmentBytes;
  }

  // As of LinearTile.
  __device__ void begin(int, LinearSums<Shape>&) const {}

  // Adds the products of a step, k by k.
  __device__ void multiply(int step, LinearSums<Shape>& sums) const {
    static_assert(Shape::kFeatureTiles == 1, "a warp has 16 features");
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Packed packed = load_packed(step, half);
      uint32_t a[2][4];
      dequantise(packed, 0, a[0]);
      dequantise(packed, 1, a[1]);
      const char* x = stage_of(step) + (x_from_ ^ half * 64);
#pragma unroll
      for (int g = 0; g < Shape::kRowTiles; ++g) {
        uint32_t b[4];
        ptx::load_matrices(b, x + g * 8 * Shape::kStepBytes);
        ptx::multiply_add<T>(sums.of[0][g], a[0], {b[0], b[1]});
        ptx::multiply_add<T>(sums.of[0][g], a[1], {b[2], b[3]});
      }
    }
  }

  // The place of the calling warp in the tile.
  __device__ int first_feature() const {
    return thread_ / kWarpSize / Shape::kRowWarpCount * Shape::kFeatureTiles * 16;
  }
  __device__ int first_row() const {
    return thread_ / kWarpSize % Shape::kRowWarpCount * Shape::kRowTiles * 8;
  }

 protected:
  static constexpr int kWords = Shape::kBits / 4;  // of a lane, for 16 elements of K

  // What a lane has of 32 elements of K: packed weights of two times 16, and the scales and zeros
  // of its two features.
  struct Packed {
    uint32_t words[2][kWords];
    float2 scales[2];
  };

  // Of the first or the second half of a step.
  __device__ __forceinline__ Packed load_packed(int step, int half) const {
    Packed packed;
    // Groups of 32 end within a step.
    const char* group =
        stage_of(step) + groups_from_ + (has_two_groups() ? half : 0) * Shape::kGroupBytes;
    packed.scales[0] = *reinterpret_cast<const float2*>(group);
    packed.scales[1] = *reinterpret_cast<const float2*>(group + 8 * sizeof(float2));
    load_words(stage_of(step) + fragments_from_, half, packed.words);
    return packed;
  }

  // The operand of 16 features and 16 elements of K.
  static __device__ __forceinline__ void dequantise(const Packed& packed, int which,
                                                    uint32_t (&a)[4]) {
    dequantise(packed.words[which], packed.scales, a);
  }

  // Rows of x in the stage of a step.
  __device__ const char* x_of(int step) const { return stage_of(step) + kXPlace; }

 private:
  static constexpr uint32_t kTwoTo23 = 0x4b000000;                   // as a float
  static constexpr int kXPlace = Shape::kTiles * Shape::kTileBytes;  // of a stage
  // Chunks of 16 bytes of a row of x, and of a tile's weights and scales.
  static constexpr int kChunks = Shape::kStepBytes / 16;
  static constexpr int kFragmentChunks = Shape::kFragmentBytes / 16;
  static constexpr int kGroupChunks = Shape::kGroupBytes / 16;
  // Rows and tiles that the block copies at once.
  static constexpr int kRowsAtOnce = Shape::kThreads / kChunks;
  static constexpr int kTilesAtOnce = Shape::kThreads / kFragmentChunks;
  static constexpr int kNumGathered = kGathers ? (Shape::kRows + kRowsAtOnce - 1) / kRowsAtOnce : 1;
  static_assert(kRowsAtOnce % 8 == 0, "chunks of all rows of a thread change places alike");
  static_assert(Shape::kTiles % kTilesAtOnce == 0 && Shape::kThreads % kFragmentChunks == 0);
  static_assert(Shape::kTiles * 2 * kGroupChunks <= Shape::kThreads);

  __device__ char* stage_of(int step) const {
    return stages_ + static_cast<unsigned>(step) % Shape::kStages * Shape::kStageBytes;
  }
  __device__ int lane() const { return thread_ % kWarpSize; }

  // What the thread copies of x: its first row in the tile, and elements from this one of a step.
  __device__ int own_row() const { return thread_ / kChunks; }
  __device__ int own_element() const { return thread_ % kChunks * Pack<T>::kSize; }

  // Of which tile it copies scales; those of two groups of 32 lie behind each other.
  __device__ bool has_two_groups() const { return log2_group_ == 5; }
  __device__ int group_tile() const { return thread_ / kGroupChunks >> (has_two_groups() ? 1 : 0); }
  __device__ int own_group() const { return has_two_groups() ? thread_ / kGroupChunks % 2 : 0; }

  __device__ __forceinline__ void copy_fragments(char* stage) const {
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; tile += kTilesAtOnce)
      ptx::async_copy_16(stage + fragments_to_ + tile * Shape::kTileBytes,
                         next_fragment_ + tile * tile_bytes_,
                         thread_ / kFragmentChunks + tile < num_tiles_);
  }

  __device__ __forceinline__ void copy_groups(char* stage) const {
    if (group_tile() >= Shape::kTiles) return;
    // Of padding the last group's.
    const int group = min(next_k_ + own_group_k_, part_end_ - 1) >> log2_group_;
    ptx::async_copy_16(stage + groups_to_, groups_ + int64_t{group} * Shape::kGroupBytes,
                       group_tile() < num_tiles_);
  }

  __device__ __forceinline__ void copy_x(char* stage) const {
    const bool is_in_part = next_k_ + own_element() < part_end_;
#pragma unroll
    for (int first = 0; first < Shape::kRows; first += kRowsAtOnce) {
      if (Shape::kRows % kRowsAtOnce != 0 && own_row() + first >= Shape::kRows) break;
      const int64_t from = kGathers ? gathered_[first / kRowsAtOnce] : first;
      ptx::async_copy_16(stage + x_to_ + first * Shape::kStepBytes, next_x_ + from * x_stride_,
                         first < num_rows_ && is_in_part);
    }
  }

  // What the lane takes of two times 16 elements of K.
  static __device__ void load_words(const char* first, int half, uint32_t (&words)[2][kWords]) {
    const char* place = first + half * kWarpSize * 8 * kWords;
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
  int log2_group_;
  int num_tiles_;       // of 16 features that exist, from the tile's first
  int num_rows_;        // that exist, from the thread's first on
  int64_t tile_bytes_;  // from 16 features to the next
  int64_t x_stride_;
  const char* next_fragment_;  // what the thread copies of the next step's weights
  const char* groups_;         // and of the first group's scales
  const T* next_x_;            // and of x in its first row; of gathered rows, in row 0
  int own_group_k_;            // where the group that it copies begins in a step
  int next_k_;
  int part_end_;
  int32_t gathered_[kNumGathered];
  char* stages_;
  int thread_;
  // In a stage: where the thread's copies go, and where it reads.
  int fragments_to_, groups_to_, x_to_;
  int fragments_from_, groups_from_, x_from_;
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
