// Tiles of a layer with weights of 8 or 4 bits that warpgroups multiply, on an H100. Weights become
// those of T in registers, as in weight_only_tile.cuh, and are multiplied from there: while the
// products of 32 elements of K are under way, the weights of the next 32 are dequantised. Sums are
// those of single warps bit for bit, as those of warpgroup_tile.cuh are.
#pragma once

#include "cuda/linear/warpgroup_tile.cuh"
#include "cuda/linear/weight_only_tile.cuh"

namespace quire::cuda {

// Two of a multiprocessor.
template <typename T>
using DequantisedRowsOf64 = WarpgroupShape<T, 128, 64, 6, 2, 1>;
// One of a multiprocessor.
template <typename T>
using DequantisedRowsOf128 = WarpgroupShape<T, 128, 128, 8, 1, 1>;
// The same for layers of several parts.
template <typename T>
using DequantisedPartsOf128 = WarpgroupShape<T, 128, 128, 6, 1, 1, 1>;

template <typename Shape_, bool kIsCut>
class WeightOnlyWarpgroupTile : public WeightOnlyTile<Shape_, kIsCut> {
 public:
  using Shape = Shape_;
  using Base = WeightOnlyTile<Shape, kIsCut>;
  using Base::Base;
  static_assert(Shape::kTiles * Shape::kTileBytes % 1024 == 0 && Shape::kStageBytes % 1024 == 0,
                "rows of x begin at a multiple of 1,024");
  static_assert(Shape::kInFlight == 1, "products of half a step go on beside those of the next");

  // Begins the products of the first half of a step, and waits for those of the step before.
  __device__ __forceinline__ void begin(int step, LinearSums<Shape>& sums) {
    begin_half<0>(step, sums);
  }

  // Begins those of the second half, and waits for those of the first.
  __device__ __forceinline__ void multiply(int step, LinearSums<Shape>& sums) {
    begin_half<1>(step, sums);
  }

 private:
  template <int kHalf>
  __device__ __forceinline__ void begin_half(int step, LinearSums<Shape>& sums) {
    constexpr int kElementsBytes = 16 * 2;
    using Product = ptx::RegisterRowsProduct<typename Shape::Element, Shape::kRowTiles>;
    const auto packed = Base::load_packed(step, kHalf);
    const uint64_t x = ptx::describe_rows(Base::x_of(step));
    ptx::hold_sums(sums.of[0]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t (&weights)[4] = weights_[kHalf][i];
      ptx::hold_operand(weights);  // the product that it was lent to has been waited for
      Base::dequantise(packed, i, weights);
      ptx::hold_operand(weights);
      ptx::begin_products();
      Product::begin(sums.of[0], weights, ptx::matrix_behind(x, (kHalf * 2 + i) * kElementsBytes));
      if (i == 1 || kGroups == 2) ptx::commit_products();
    }
    ptx::wait_for_products<kGroups>();
  }

  // Of the two products of half a step, which go on while the next half is dequantised. Of a group
  // of two the assembler waits for the first, which takes fewer registers: two blocks live in them.
  static constexpr int kGroups = Shape::kBlocks == 1 ? 2 : 1;

  uint32_t weights_[2][2][4] = {};  // of the halves of a step
};

template <typename Shape, bool kIsCut>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    warpgroup_weight_only_kernel(const WeightOnlyLinearParams p, const LinearGrid grid,
                                 const SplitResults results) {
  begin_kernel();
#if QUIRE_HAS_WARPGROUPS
  QUIRE_SWIZZLED_SHARED(shared);
  compute_tiles<WeightOnlyWarpgroupTile<Shape, kIsCut>, kIsCut>(p, grid, results, shared);
#else
  __trap();  // launched by a driver that was made to take other code than the device's
#endif
}

// `Cut` is for layers of several parts.
template <typename Whole, typename Cut = Whole>
void launch_weight_only_warpgroups(const WeightOnlyLinearParams& p, bool is_split,
                                   const SplitResults& results, cudaStream_t stream) {
  if (p.num_parts > 1) {
    launch_tiles<Cut>(warpgroup_weight_only_kernel<Cut, true>, p, is_split, results, stream);
  } else {
    launch_tiles<Whole>(warpgroup_weight_only_kernel<Whole, false>, p, is_split, results, stream);
  }
}

}  // namespace quire::cuda
