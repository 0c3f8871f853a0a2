// Tiles of a linear layer that warpgroups multiply, on an H100: each takes 64 features and all rows
// of the tile. Sums are those of the tile of single warps bit for bit: the instruction adds the
// products of 16 elements of K as theirs does, which an H100 has shown (docs/gpu-measured.md).
#pragma once

#include "cuda/linear/linear.cuh"
#include "cuda/warpgroup.h"

namespace quire::cuda {

// `kInFlight_` steps are multiplied while copies of a later one begin; `kBlocks_` of a
// multiprocessor.
template <typename T, int kFeatures_, int kRows_, int kStages_, int kBlocks_, int kInFlight_,
          int kSharedLevels_ = 0>
struct WarpgroupShape : LinearShape<T, kFeatures_, kRows_, kFeatures_ / 16, 1, kStages_> {
  using Base = LinearShape<T, kFeatures_, kRows_, kFeatures_ / 16, 1, kStages_>;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kInFlight = kInFlight_;
  static constexpr int kStepsAhead = kStages_ - 1 - kInFlight_;
  static_assert(kStepsAhead >= 1);
  static_assert(Base::kStageBytes % 1024 == 0, "rows of a stage begin at a multiple of 1,024");
  static constexpr int kSharedLevels = kSharedLevels_;
  static constexpr int kSharedBytes = Base::kSharedBytes + kSharedLevels * kFeatures_ * kRows_ * 4;

  static __device__ __forceinline__ void pass_copies() { ptx::fence_for_products(); }
  template <typename Sums>
  static __device__ __forceinline__ void wait(Sums& sums) {
    if constexpr (kInFlight > 0) ptx::wait_for_products<0>();
    ptx::hold_sums(sums.of[0]);
  }
};

// Several of a multiprocessor.
template <typename T>
using SmallRowsOf32 = WarpgroupShape<T, 64, 32, 5, 3, 0>;
template <typename T>
using SmallRowsOf64 = WarpgroupShape<T, 64, 64, 4, 3, 0>;
template <typename T>
using WideRowsOf64 = WarpgroupShape<T, 128, 64, 4, 2, 1>;
// One of a multiprocessor.
template <typename T>
using DeepRowsOf64 = WarpgroupShape<T, 64, 64, 9, 1, 0, kTreeLevels>;
template <typename T>
using WideRowsOf128 = WarpgroupShape<T, 128, 128, 6, 1, 1>;
// For layers of one section: there are registers for twice as many sums.
template <typename T>
struct WidestRowsOf256 : WarpgroupShape<T, 128, 256, 4, 1, 1> {
  static constexpr bool kIsOneSection = true;
};
// For layers of several parts, whose sums would go to memory and back with each of them.
template <typename T>
using PartsOfRowsOf64 = WarpgroupShape<T, 64, 64, 4, 2, 0, kTreeLevels>;
template <typename T>
using PartsOfRowsOf128 = WarpgroupShape<T, 128, 128, 5, 1, 1, 1>;

template <typename Shape_, bool kIsCut>
class WarpgroupTile : public LinearTile<Shape_, true, kIsCut> {
 public:
  using Shape = Shape_;
  using Base = LinearTile<Shape, true, kIsCut>;
  using Base::Base;

  // Begins the products of a step, beside which copies of a later one are begun.
  __device__ __forceinline__ void begin(int step, LinearSums<Shape>& sums) const {
    constexpr int kElementsBytes = 16 * 2;
    const char* stage = Base::stage_of(step);
    const uint64_t weight = ptx::describe_rows(stage + group_ * kGroupFeatures * Shape::kStepBytes);
    const uint64_t x = ptx::describe_rows(stage + Shape::kFeatures * Shape::kStepBytes);
    ptx::hold_sums(sums.of[0]);
    ptx::begin_products();
#pragma unroll
    for (int k = 0; k < Shape::kStepBytes; k += kElementsBytes)
      ptx::WarpgroupProduct<typename Shape::Element, Shape::kRowTiles>::begin(
          sums.of[0], ptx::matrix_behind(weight, k), ptx::matrix_behind(x, k));
    ptx::commit_products();
  }

  // Waits for the products that are not to go on beside those of the next step.
  __device__ __forceinline__ void multiply(int, LinearSums<Shape>&) const {
    ptx::wait_for_products<Shape::kInFlight>();
  }

 private:
  static constexpr int kGroupThreads = 128, kGroupFeatures = 64;

  // The same in all lanes, which the compiler is to know.
  int group_ = Shape::kFeatures == kGroupFeatures
                   ? 0
                   : __shfl_sync(kFullMask, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
};

template <typename Shape, bool kIsCut>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    warpgroup_linear_kernel(const LinearParams p, const LinearGrid grid,
                            const SplitResults results) {
  begin_kernel();
#if QUIRE_HAS_WARPGROUPS
  QUIRE_SWIZZLED_SHARED(shared);
  compute_tiles<WarpgroupTile<Shape, kIsCut>, kIsCut>(p, grid, results, shared);
#else
  __trap();  // launched by a driver that was made to take other code than the device's
#endif
}

// Of layers of one part.
template <typename Shape>
void launch_whole(const LinearParams& p, bool is_split, const SplitResults& results,
                  cudaStream_t stream) {
  launch_tiles<Shape>(warpgroup_linear_kernel<Shape, false>, p, is_split, results, stream);
}

// Of layers of several.
template <typename Shape>
void launch_cut(const LinearParams& p, bool is_split, const SplitResults& results,
                cudaStream_t stream) {
  launch_tiles<Shape>(warpgroup_linear_kernel<Shape, true>, p, is_split, results, stream);
}

template <typename Shape>
void launch_warpgroups(const LinearParams& p, bool is_split, const SplitResults& results,
                       cudaStream_t stream) {
  const auto launch = p.num_parts > 1 ? launch_cut<Shape> : launch_whole<Shape>;
  launch(p, is_split, results, stream);
}

}  // namespace quire::cuda
