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
  static constexpr int kStepsAtOnce = 1;               // behind a barrier
  static constexpr int kStepsAhead = kStages - 1;      // that copies run
  static constexpr int kResultStride = kFeatures + 4;  // floats; columns fall into other banks
  static constexpr int kResultBytes = kRows * kResultStride * 4;
  static constexpr int kSharedBytes =
      kStages * kStageBytes > kResultBytes ? kStages * kStageBytes : kResultBytes;

  // Whether it is for layers of one section alone, whose sum needs no other beside it.
  static constexpr bool kIsOneSection = false;
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
      : part_length_(static_cast<int>(p.in_features) / static_cast<int>(p.num_parts)),
        next_k_(part * part_length_ + first * Shape::kStep),
        part_end_((part + 1) * part_length_),
        stages_(stages),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        warp_(static_cast<int>(threadIdx.x) / kWarpSize),
        own_row_(static_cast<int>(threadIdx.x) / kChunks),
        own_chunk_(static_cast<int>(threadIdx.x) % kChunks) {
    weight_ = operand(p.weight, p.weight_stride, feature, p.out_features, false);
    x_ = operand(p.x, p.x_stride, row, p.num_rows, kGathers);
    if constexpr (kGathers) {
#pragma unroll
      for (int i = 0; i < kNumGathered; ++i)
        gathered_[i] =
            i * kRowsAtOnce < x_.num_rows ? gathered_rows[row + own_row_ + i * kRowsAtOnce] : 0;
    }
  }

  // Begins to copy the next step of both operands into the stage of `step`; zeros beyond the end of
  // its part.
  __device__ __forceinline__ void copy(int step) {
    char* stage = stage_of(step) + Shape::offset(own_row_, own_chunk_);
    copy_rows<Shape::kFeatures, false>(weight_, stage);
    copy_rows<Shape::kRows, kGathers>(x_, stage + Shape::kFeatures * Shape::kStepBytes);
    int passed = Shape::kStep;
    if (kIsCut && next_k_ + passed >= part_end_) {
      passed = part_end_ - next_k_;
      part_end_ += part_length_;
    }
    next_k_ += passed;
    weight_.next += passed;
    x_.next += passed;
  }

  // Begins products of a step that go on by themselves: there are none.
  __device__ void begin(int, LinearSums<Shape>&) const {}

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

  static_assert(kRowsAtOnce % 8 == 0, "chunks of all rows of a thread change places alike");

  // What a thread copies of an operand: a chunk of every so many rows.
  struct Operand {
    const T* next;   // that of its first row, in the next step; of gathered rows, of row 0
    int64_t stride;  // from a row to the next
    int num_rows;    // that exist, from its first on
  };

  __device__ Operand operand(const void* data, int64_t stride, int64_t first, int64_t end,
                             bool is_gathered) const {
    const int64_t row = first + own_row_;
    return {static_cast<const T*>(data) + (is_gathered ? 0 : row * stride) + next_k_ +
                own_chunk_ * Pack<T>::kSize,
            stride, static_cast<int>(min(end - row, int64_t{INT32_MAX}))};
  }

  template <int kCount, bool kAreGathered>
  __device__ __forceinline__ void copy_rows(const Operand& from, char* to) const {
    const int num_left = part_end_ - next_k_ - own_chunk_ * Pack<T>::kSize;  // elements of the part
#pragma unroll
    for (int first = 0; first < kCount; first += kRowsAtOnce) {
      if (kCount % kRowsAtOnce != 0 && own_row_ + first >= kCount) break;
      const bool exists = first < from.num_rows;
      const T* source =
          from.next + (kAreGathered ? gathered_[first / kRowsAtOnce] : first) * from.stride;
      char* place = to + first * Shape::kStepBytes;
      if constexpr (kIsAligned) {
        ptx::async_copy_16(place, source, exists && num_left > 0);
      } else {
        Pack<T> pack;
#pragma unroll
        for (int i = 0; i < Pack<T>::kSize; ++i)
          pack.values[i] = exists && i < num_left ? source[i] : from_float<T>(0.f);
        *reinterpret_cast<Pack<T>*>(place) = pack;
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

  int part_length_;
  int next_k_;
  int part_end_;
  int32_t gathered_[kNumGathered];
  char* stages_;
  int lane_;
  int warp_;
  int own_row_;    // of what the thread copies, its first in the tile
  int own_chunk_;  // of these rows
  Operand weight_;
  Operand x_;
};

}  // namespace quire::cuda
