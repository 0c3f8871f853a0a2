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

// What a block computes.
struct ExpertTile {
  int expert;  // below 0: nothing
  int part;
  int index;  // of its rows in the list
  int64_t feature;
};

// The tile of the calling block.
template <typename Shape>
__device__ __forceinline__ ExpertTile expert_tile(const ExpertRows& rows, const ExpertGrid& grid) {
  const int index = static_cast<int>(blockIdx.x) % grid.num_tiles;
  const int part_and_features = static_cast<int>(blockIdx.x) / grid.num_tiles;
  return {rows.tiles[2 * index], part_and_features % grid.num_parts, index,
          int64_t{part_and_features / grid.num_parts} * Shape::kFeatures};
}

// Computes the tile `at`, of a layer whose weights are those of its expert.
template <typename Tile>
__device__ __forceinline__ void compute_expert_tile(typename Tile::Params own,
                                                    const ExpertRows& rows, const ExpertGrid& grid,
                                                    const ExpertTile& at, char* shared) {
  using Shape = typename Tile::Shape;
  using T = typename Shape::Element;
  const int64_t row = rows.tiles[2 * at.index + 1];
  own.num_rows = min(int64_t{rows.offsets[at.expert + 1]}, row + rows.tile_rows);
  const int64_t out_part = at.part * rows.part_stride;
  own.out = own.out_is_float ? static_cast<void*>(static_cast<float*>(own.out) + out_part)
                             : static_cast<void*>(static_cast<T*>(own.out) + out_part);
  Tile tile(own, at.feature, row, shared, at.part, 0, rows.rows);
  const int step = at.part * grid.part_steps;
  compute_part(tile, own, at.feature, row, step, step + grid.part_steps, grid.section_steps,
               shared);
}

template <typename Shape, bool kIsAligned, bool kGathers>
__global__ void __launch_bounds__(Shape::kThreads, kIsAligned ? Shape::kBlocks : 2)
    expert_linear_kernel(const ExpertLinearParams p, const ExpertGrid grid) {
  begin_kernel();
  using T = typename Shape::Element;
  QUIRE_DYNAMIC_SHARED(shared);
  const ExpertTile at = expert_tile<Shape>(p, grid);
  if (at.expert < 0) return;
  LinearParams own = p.linear;
  own.weight = static_cast<const T*>(own.weight) + at.expert * p.expert_stride;
  compute_expert_tile<LinearTile<Shape, kIsAligned, false, kGathers>>(own, p, grid, at, shared);
}

// Starts a kernel whose blocks compute a tile each.
template <typename Shape, typename Params>
void launch_expert_tiles(void (*kernel)(Params, ExpertGrid), const Params& p, cudaStream_t stream) {
  const int64_t part_length = p.linear.in_features / p.linear.num_parts;
  const LinearSections sections =
      linear_sections(p.linear.total_features, p.linear.total_parts, part_length);
  ExpertGrid grid{};
  grid.num_tiles = static_cast<int>(p.num_tiles);
  grid.num_parts = static_cast<int>(p.linear.num_parts);
  grid.section_steps = static_cast<int>(sections.length / Shape::kStep);
  grid.part_steps = static_cast<int>((part_length + Shape::kStep - 1) / Shape::kStep);
  const int64_t feature_tiles = (p.linear.out_features + Shape::kFeatures - 1) / Shape::kFeatures;
  launch(kernel, grid_size(p.num_tiles * p.linear.num_parts * feature_tiles), Shape::kThreads,
         Shape::kSharedBytes, stream, p, grid);
}

template <typename Shape, bool kIsAligned, bool kGathers>
void launch_expert_linear(const ExpertLinearParams& p, cudaStream_t stream) {
  launch_expert_tiles<Shape>(expert_linear_kernel<Shape, kIsAligned, kGathers>, p, stream);
}

}  // namespace quire::cuda
