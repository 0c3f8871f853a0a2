// A linear layer of each expert for the rows that the router sent there, all experts in one launch.
//
// A block has a tile of features of one expert by some of its rows; which, it reads from the list
// of tiles that order_experts made. The sums are those of linear.cuh: an expert's rows have the
// bits that `linear` of its weights would give, part by part, since each part goes to `out` by
// itself.
#pragma once

#include "cuda/linear/linear.cuh"
#include "ops/experts.h"

namespace quire::cuda {

struct ExpertGrid {
  int num_tiles;  // of rows; next to each other, since those of an expert read the same weights
  int num_parts;
  int section_steps;
  int part_steps;
};

template <typename Shape, bool kIsAligned, bool kGathers>
__global__ void __launch_bounds__(Shape::kThreads, kIsAligned ? Shape::kBlocks : 2)
    expert_linear_kernel(const ExpertLinearParams p, const ExpertGrid grid) {
  begin_kernel();
  using T = typename Shape::Element;
  QUIRE_DYNAMIC_SHARED(shared);
  const int tile_index = static_cast<int>(blockIdx.x) % grid.num_tiles;
  const int part = static_cast<int>(blockIdx.x) / grid.num_tiles % grid.num_parts;
  const int feature_tile = static_cast<int>(blockIdx.x) / grid.num_tiles / grid.num_parts;
  const int expert = p.tiles[2 * tile_index];
  if (expert < 0) return;
  const int64_t row = p.tiles[2 * tile_index + 1];
  const int64_t feature = int64_t{feature_tile} * Shape::kFeatures;

  LinearParams own = p.linear;
  own.weight = static_cast<const T*>(own.weight) + expert * p.expert_stride;
  own.num_rows = min(int64_t{p.offsets[expert + 1]}, row + p.tile_rows);
  const int64_t out_part = part * p.part_stride;
  own.out = own.out_is_float ? static_cast<void*>(static_cast<float*>(own.out) + out_part)
                             : static_cast<void*>(static_cast<T*>(own.out) + out_part);
  LinearTile<Shape, kIsAligned, false, kGathers> tile(own, feature, row, shared, part, 0, p.rows);
  LinearSums<Shape> total;
  int step = 0;
  begin_copies<Shape>(tile, step, grid.part_steps);
  add_sections<Shape>(tile, step, grid.part_steps, grid.part_steps, grid.section_steps, total);
  __syncthreads();  // all are done with the stages
  auto* result = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < Shape::kProducts; ++i)
    put_result<Shape>(total.get(i), i, tile.first_feature(), tile.first_row(), result);
  __syncthreads();  // the result is there
  write_tile<Shape>(own, feature, row, result);
}

template <typename Shape, bool kIsAligned, bool kGathers>
void launch_expert_linear(const ExpertLinearParams& p, cudaStream_t stream) {
  const int64_t part_length = p.linear.in_features / p.linear.num_parts;
  const LinearSections sections =
      linear_sections(p.linear.total_features, p.linear.total_parts, part_length);
  ExpertGrid grid{};
  grid.num_tiles = static_cast<int>(p.num_tiles);
  grid.num_parts = static_cast<int>(p.linear.num_parts);
  grid.section_steps = static_cast<int>(sections.length / Shape::kStep);
  grid.part_steps = static_cast<int>((part_length + Shape::kStep - 1) / Shape::kStep);
  const int64_t feature_tiles = (p.linear.out_features + Shape::kFeatures - 1) / Shape::kFeatures;
  launch(expert_linear_kernel<Shape, kIsAligned, kGathers>,
         grid_size(p.num_tiles * p.linear.num_parts * feature_tiles), Shape::kThreads,
         Shape::kSharedBytes, stream, p, grid);
}

}  // namespace quire::cuda
