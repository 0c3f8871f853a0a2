// Tiles of a linear layer that warpgroups multiply, on an H100: each takes 64 features and all rows
// of the tile. Sums are those of the tile of single warps bit for bit: the instruction adds the
// products of 16 elements of K as theirs does, which an H200 has shown (docs/gpu.md).
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
  static __device__ __forceinline__ void wait(LinearSums<WarpgroupShape>& sums) {
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
// The same for layers of several parts, whose sums would go to memory and back with each of them.
template <typename T>
using PartsOfRowsOf128 = WarpgroupShape<T, 128, 128, 4, 1, 1, 1>;

template <typename Shape_, bool kIsCut>
class WarpgroupTile : public LinearTile<Shape_, true, kIsCut> {
 public:
  using Shape = Shape_;
  using Base = LinearTile<Shape, true, kIsCut>;
  using Base::Base;

  // Begins the products of a step, and waits for those that are not to go on beside the next one.
  __device__ __forceinline__ void multiply(int step, LinearSums<Shape>& sums) const {
    constexpr int kWarps = 4, kFeatures = 64, kElementsBytes = 16 * 2;
    const char* stage = Base::stage_of(step);
    const int first = static_cast<int>(threadIdx.x) / kWarpSize / kWarps * kFeatures;
    const char* weight = stage + first * Shape::kStepBytes;
    const char* x = stage + Shape::kFeatures * Shape::kStepBytes;
    ptx::hold_sums(sums.of[0]);
    ptx::begin_products();
#pragma unroll
    for (int k = 0; k < Shape::kStepBytes; k += kElementsBytes)
      ptx::WarpgroupProduct<typename Shape::Element, Shape::kRowTiles>::begin(
          sums.of[0], ptx::describe_rows(weight + k), ptx::describe_rows(x + k));
    ptx::commit_products();
    ptx::wait_for_products<Shape::kInFlight>();
  }
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

// `Cut` is for layers of several parts.
template <typename Whole, typename Cut = Whole>
void launch_warpgroups(const LinearParams& p, bool is_split, const SplitResults& results,
                       cudaStream_t stream) {
  if (p.num_parts > 1) {
    launch_tiles<Cut>(warpgroup_linear_kernel<Cut, true>, p, is_split, results, stream);
  } else {
    launch_tiles<Whole>(warpgroup_linear_kernel<Whole, false>, p, is_split, results, stream);
  }
}

}  // namespace quire::cuda
