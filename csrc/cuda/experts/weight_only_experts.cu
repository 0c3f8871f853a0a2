// Chooses the tiles of experts' layers with weights of 8 or 4 bits and launches them. The choice
// changes no bit.
#include "cuda/cuda_ops.h"
#include "cuda/experts/weight_only_experts.cuh"
#include "cuda/linear/weight_only_formats.cuh"

namespace quire::cuda {

void weight_only_experts(const WeightOnlyExpertsParams& p, cudaStream_t stream) {
  if (p.linear.num_rows == 0 || p.linear.out_features == 0) return;
  dispatch_weight_only(p.linear, p.tile_rows,
                       [&](auto shape) { launch_weight_only_experts<decltype(shape)>(p, stream); });
}

}  // namespace quire::cuda
