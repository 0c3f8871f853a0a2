// The attention kernels of the field's beginnings, on their own layout of the cache.
#pragma once

#include "cuda/workspace.h"
#include "seed/params.h"

namespace quire::cuda {

// What the second version has computed of each partition: [N, H, count, ...].
struct SeedPartitions {
  float* out;
  float* max;
  float* sum;
  int count;
};

void seed_attention(const SeedAttentionParams& p, Workspace& workspace, cudaStream_t stream);

}  // namespace quire::cuda
