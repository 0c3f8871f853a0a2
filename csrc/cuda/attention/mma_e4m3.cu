// The kernels over caches of e4m3, compiled apart from the others to shorten the build.
#include "cuda/attention/mma_launch.cuh"

namespace quire::cuda {

void attention_mma_e4m3(const PagedAttentionParams& p, const DevicePlan& plan,
                        cudaStream_t stream) {
  if (p.dtype == DType::kBFloat16) {
    attention_mma_of<bf16, e4m3>(p, plan, stream);
  } else {
    attention_mma_of<f16, e4m3>(p, plan, stream);
  }
}

int attention_mma_blocks_e4m3(const PagedAttentionParams& p) {
  return p.dtype == DType::kBFloat16 ? attention_mma_blocks_of<bf16, e4m3>(p)
                                     : attention_mma_blocks_of<f16, e4m3>(p);
}

}  // namespace quire::cuda
