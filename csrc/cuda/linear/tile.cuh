// A block's tile of a linear layer (linear.cuh): its layout in shared memory, its copies and its
// products.
#pragma once

#include <type_traits>

#include "cuda/ptx.h"
#include "cuda/vector.h"
#include "ops/linear.h"

namespace quire::cuda {

// `kFeatures_` rows of the weights by `kRows_` rows of x, shared out among
// `kFeatureWarps` x `kRowWarps` warps; `kStages_` steps along K lie in shared memory at once.
template <typename T, int kFeatures_, int kRows_, int kFeatureWarps, int kRowWarps, int kStages_>
struct LinearShape {
  using Element = T;
  static constexpr int kFeatures = kFeatures_;
  static constexpr int kRows = kRows_;
  static constexpr int kStages = kStages_;
  static constexpr int kThreads = kFeatureWarps * kRowWarps * kWarpSize;
  static constexpr int kBlocks = kThreads > 128 ? 1 : 3;  // of a multiprocessor
  static constexpr int kRowWarpCount = kRowWarps;
  // A warp's share, in products of 16 features and 8 rows.
  static constexpr int kFeatureTiles = kFeatures / kFeatureWarps / 16;
  static constexpr int kRowTiles = kRows / kRowWarps / 8;
  static constexpr int kProducts = kFeatureTiles * kRowTiles;

  static constexpr int kStepBytes = 128;  // of a row in a stage: eight chunks of 16
  static constexpr int kStep = kStepBytes / static_cast<int>(sizeof(T));
  static constexpr int kStageBytes = (kFeatures + kRows) * kStepBytes;
  static constexpr int kStepsAhead = kStages - 1;      // that copies run
  static constexpr int kResultStride = kFeatures + 4;  // floats; columns fall into other banks
  static constexpr int kResultBytes = kRows * kResultStride * 4;
  static constexpr int kSharedBytes =
      kStages * kStageBytes > kResultBytes ? kStages * kStageBytes : kResultBytes;

  // Levels of the tree of parts whose sums wait behind the stages, and not in the device's memory.
  static constexpr int kSharedLevels = 0;

  // What copies brought that the thread has waited for is about to be multiplied.
  static __device__ void pass_copies() {}
  // Waits for products that are under way.
  template <typename Sums>
  static __device__ void wait(Sums&) {}

  // Eight rows in one column of chunks fall into eight different bank groups.
  static __device__ int offset(int row, int chunk) {
    return row * kStepBytes + (chunk ^ (row & 7)) * 16;
  }
};

template <typename T>
using RowsOf8 = LinearShape<T, 64, 8, 4, 1, 6>;
template <typename T>
using RowsOf16 = LinearShape<T, 64, 16, 4, 1, 6>;
template <typename T>
using RowsOf32 = LinearShape<T, 64, 32, 4, 1, 5>;
template <typename T>
using RowsOf64 = LinearShape<T, 64, 64, 2, 2, 4>;
template <typename T>
using RowsOf128 = LinearShape<T, 128, 128, 2, 4, 3>;

// A thread's sums: of features lane / 4 and lane / 4 + 8 and rows 2 (lane % 4) and the next, in
// the order that a tensor core's result has.
template <typename Shape>
struct LinearSums {
  float of[Shape::kFeatureTiles][Shape::kRowTiles][4] = {};

  // The four of a product.
  __device__ __forceinline__ float4 get(int product) const {
    const float (&s)[4] = of[product / Shape::kRowTiles][product % Shape::kRowTiles];
    return {s[0], s[1], s[2], s[3]};
  }
  __device__ __forceinline__ void set(int product, const float4& four) {
    float (&s)[4] = of[product / Shape::kRowTiles][product % Shape::kRowTiles];
    s[0] = four.x, s[1] = four.y, s[2] = four.z, s[3] = four.w;
  }

  __device__ __forceinline__ void add(const LinearSums& other) {
#pragma unroll
    for (int f = 0; f < Shape::kFeatureTiles; ++f)
#pragma unroll
      for (int g = 0; g < Shape::kRowTiles; ++g)
#pragma unroll
        for (int i = 0; i < 4; ++i) of[f][g][i] += other.of[f][g][i];
  }
};

// `kIsAligned`: both operands may be copied 16 bytes at a time. `kIsCut`: K has several parts.
// `kGathers`: rows of x lie where `gathered_rows` says.
template <typename Shape_, bool kIsAligned, bool kIsCut, bool kGathers = false>
class LinearTile {
 public:
  using Shape = Shape_;
  using Params = LinearParams;
  using T = typename Shape::Element;

  // Of rows from `feature` and `row` on, to be copied from step `first` of a part of K on.
  __device__ LinearTile(const LinearParams& p, int64_t feature, int64_t row, char* stages, int part,
                        int first, const int32_t* gathered_rows = nullptr)
      : weight_{static_cast<const T*>(p.weight) + feature * p.weight_stride, p.weight_stride,
                p.out_features - feature},
        x_{static_cast<const T*>(p.x) + (kGathers ? 0 : row * p.x_stride), p.x_stride,
           p.num_rows - row},
        part_length_(static_cast<int>(p.in_features) / static_cast<int>(p.num_parts)),
        next_k_(part * part_length_ + first * Shape::kStep),
        part_end_((part + 1) * part_length_),
        stages_(stages),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        warp_(static_cast<int>(threadIdx.x) / kWarpSize) {
    if constexpr (kGathers) {
#pragma unroll
      for (int i = 0; i < kNumGathered; ++i) {
        const int64_t at = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / kChunks;
        gathered_[i] = at < x_.num_rows ? gathered_rows[row + at] : 0;
      }
    }
  }

  // Begins to copy the next step of both operands into the stage of `step`; zeros beyond the end of
  // its part.
  __device__ void copy(int step) {
    char* stage = stage_of(step);
    copy_rows<Shape::kFeatures, false>(weight_, next_k_, stage);
    copy_rows<Shape::kRows, kGathers>(x_, next_k_, stage + Shape::kFeatures * Shape::kStepBytes);
    next_k_ += Shape::kStep;
    if (kIsCut && next_k_ >= part_end_) {
      next_k_ = part_end_;
      part_end_ += part_length_;
    }
  }

  // Adds the products of a step, k by k.
  __device__ void multiply(int step, LinearSums<Shape>& sums) const {
    const char* weight = stage_of(step) + first_feature() * Shape::kStepBytes;
    const char* x = stage_of(step) + (Shape::kFeatures + first_row()) * Shape::kStepBytes;
    if constexpr (std::is_same_v<T, float>) {
      multiply_floats(weight, x, sums);
    } else {
      multiply_matrices(weight, x, sums);
    }
  }

  // The place of the calling warp in the tile.
  __device__ int first_feature() const {
    return warp_ / Shape::kRowWarpCount * Shape::kFeatureTiles * 16;
  }
  __device__ int first_row() const { return warp_ % Shape::kRowWarpCount * Shape::kRowTiles * 8; }

 protected:
  __device__ char* stage_of(int step) const {
    return stages_ + step % Shape::kStages * Shape::kStageBytes;
  }

 private:
  static constexpr int kChunks = Shape::kStepBytes / 16;  // of a row
  // Rows that the block copies at once; and those of a thread, if they are gathered.
  static constexpr int kRowsAtOnce = Shape::kThreads / kChunks;
  static constexpr int kNumGathered = kGathers ? (Shape::kRows + kRowsAtOnce - 1) / kRowsAtOnce : 1;

  struct Operand {
    const T* rows;
    int64_t stride;
    int64_t num_rows;  // that exist, from the tile's first
  };

  template <int kCount, bool kAreGathered>
  __device__ void copy_rows(const Operand& from, int k, char* stage) const {
    const int thread = static_cast<int>(threadIdx.x);
    const int chunk = thread % kChunks;
    k += chunk * Pack<T>::kSize;
#pragma unroll
    for (int first = 0; first < kCount; first += kRowsAtOnce) {
      const int row = first + thread / kChunks;
      if (kCount % kRowsAtOnce != 0 && row >= kCount) break;
      char* to = stage + Shape::offset(row, chunk);
      const bool exists = row < from.num_rows;
      const T* source =
          from.rows + (kAreGathered ? gathered_[first / kRowsAtOnce] : row) * from.stride;
      if constexpr (kIsAligned) {
        const bool is_valid = exists && k < part_end_;
        ptx::async_copy_16(to, source + k, is_valid);
      } else {
        Pack<T> pack;
#pragma unroll
        for (int i = 0; i < Pack<T>::kSize; ++i) {
          const bool is_valid = exists && k + i < part_end_;
          pack.values[i] = is_valid ? source[k + i] : from_float<T>(0.f);
        }
        *reinterpret_cast<Pack<T>*>(to) = pack;
      }
    }
  }

  // On tensor cores: weights always as the operand of 16 rows, rows of x as the 8 columns.
  __device__ void multiply_matrices(const char* weight, const char* x,
                                    LinearSums<Shape>& sums) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t b[Shape::kRowTiles][2][2];
#pragma unroll
      for (int g = 0; g < Shape::kRowTiles; ++g) {
        uint32_t four[4];
        ptx::load_matrices(four, x + Shape::offset(g * 8 + lane_ % 8, half * 4 + lane_ / 8));
        b[g][0][0] = four[0];
        b[g][0][1] = four[1];
        b[g][1][0] = four[2];
        b[g][1][1] = four[3];
      }
#pragma unroll
      for (int quarter = 0; quarter < 2; ++quarter) {
        const int chunk = half * 4 + quarter * 2;
#pragma unroll
        for (int f = 0; f < Shape::kFeatureTiles; ++f) {
          uint32_t a[4];
          ptx::load_matrices(a, weight + Shape::offset(f * 16 + lane_ % 16, chunk + lane_ / 16));
#pragma unroll
          for (int g = 0; g < Shape::kRowTiles; ++g)
            ptx::multiply_add<T>(sums.of[f][g], a, b[g][quarter]);
        }
      }
    }
  }

  // The same sums by fused multiply-adds: float32 is not rounded to what tensor cores take.
  __device__ void multiply_floats(const char* weight, const char* x,
                                  LinearSums<Shape>& sums) const {
    constexpr int kChunks = Shape::kStepBytes / 16;
    using Four = Pack<float>;
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      Four w[Shape::kFeatureTiles * 2];
      Four v[Shape::kRowTiles * 2];
#pragma unroll
      for (int i = 0; i < Shape::kFeatureTiles * 2; ++i)
        w[i] = *reinterpret_cast<const Four*>(weight + Shape::offset(i * 8 + lane_ / 4, chunk));
#pragma unroll
      for (int j = 0; j < Shape::kRowTiles * 2; ++j)
        v[j] = *reinterpret_cast<const Four*>(
            x + Shape::offset(j / 2 * 8 + lane_ % 4 * 2 + j % 2, chunk));
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int f = 0; f < Shape::kFeatureTiles; ++f)
#pragma unroll
          for (int g = 0; g < Shape::kRowTiles; ++g)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              float& sum = sums.of[f][g][i];
              sum = fmaf(w[f * 2 + i / 2].values[k], v[g * 2 + i % 2].values[k], sum);
            }
    }
  }

  Operand weight_;
  Operand x_;
  int part_length_;
  int next_k_;
  int part_end_;
  int32_t gathered_[kNumGathered];
  char* stages_;
  int lane_;
  int warp_;
};

}  // namespace quire::cuda
