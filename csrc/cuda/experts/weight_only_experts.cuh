// A linear layer of each expert, as in expert_linear.cuh, over weights of 8 or 4 bits: an expert's
// rows have the bits that `weight_only_linear` of its weights would give, part by part.
#pragma once

#include "cuda/experts/expert_linear.cuh"
#include "cuda/linear/weight_only_tile.cuh"

namespace quire::cuda {

// Rows are gathered or not, by the arguments: a kernel for each would take twice as long to
// compile, and a row's place is read once.
template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    weight_only_experts_kernel(const WeightOnlyExpertsParams p, const ExpertGrid grid) {
  begin_kernel();
  QUIRE_DYNAMIC_SHARED(shared);
  const ExpertTile at = expert_tile<Shape>(p, grid);
  if (at.expert < 0) return;
  WeightOnlyLinearParams own = p.linear;
  own.weight = static_cast<const char*>(own.weight) + at.expert * p.packed_stride;
  own.scales = static_cast<const char*>(own.scales) + at.expert * p.scales_stride;
  compute_expert_tile<WeightOnlyTile<Shape, false, true>>(own, p, grid, at, shared);
}

template <typename Shape>
void launch_weight_only_experts(const WeightOnlyExpertsParams& p, cudaStream_t stream) {
  launch_expert_tiles<Shape>(weight_only_experts_kernel<Shape>, p, stream);
}

}  // namespace quire::cuda
