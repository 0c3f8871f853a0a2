// A linear layer of each head, all heads in one launch: latent attention takes its queries to
// latent space by one and its results back by another.
//
// A block has a tile of one head and all of its sections. The sums are those of linear.cuh: a head
// has the bits that `linear` of it alone would give.
#pragma once

#include "cuda/linear/linear.cuh"

namespace quire::cuda {

struct HeadGrid {
  int row_tiles;  // next to each other, since they read the same weights
  int section_steps;
  int steps;
};

// Moves a pointer by so many elements of `T`.
template <typename T, typename Void>
__device__ __forceinline__ void move(Void*& data, int64_t elements) {
  using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
  data = static_cast<Element*>(data) + elements;
}

// blockIdx.y is the head.
template <typename Shape, bool kIsAligned>
__global__ void __launch_bounds__(Shape::kThreads, kIsAligned ? Shape::kBlocks : 2)
    head_linear_kernel(const HeadLinearParams p, const HeadGrid grid) {
  begin_kernel();
  using T = typename Shape::Element;
  QUIRE_DYNAMIC_SHARED(shared);
  const int64_t head = blockIdx.y;
  const int64_t row = int64_t{static_cast<int>(blockIdx.x) % grid.row_tiles} * Shape::kRows;
  const int64_t feature = int64_t{static_cast<int>(blockIdx.x) / grid.row_tiles} * Shape::kFeatures;
  LinearParams own = p.head;
  move<T>(own.out, head * p.out_head_stride);
  move<T>(own.x, head * p.x_head_stride);
  move<T>(own.weight, head * p.weight_head_stride);
  LinearTile<Shape, kIsAligned, false> tile(own, feature, row, shared, 0, 0);
  compute_part(tile, own, feature, row, 0, grid.steps, grid.section_steps, shared);
}

template <typename Shape, bool kIsAligned>
void launch_head_linear(const HeadLinearParams& p, cudaStream_t stream) {
  const LinearSections sections = linear_sections(p.head.out_features, 1, p.head.in_features);
  HeadGrid grid{};
  grid.row_tiles = static_cast<int>((p.head.num_rows + Shape::kRows - 1) / Shape::kRows);
  grid.section_steps = static_cast<int>(sections.length / Shape::kStep);
  grid.steps = static_cast<int>((p.head.in_features + Shape::kStep - 1) / Shape::kStep);
  launch(head_linear_kernel<Shape, kIsAligned>,
         dim3(grid_size(num_tiles<Shape>(p.head)), static_cast<unsigned>(p.num_heads)),
         Shape::kThreads, Shape::kSharedBytes, stream, p, grid);
}

}  // namespace quire::cuda
