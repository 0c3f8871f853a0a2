// The kernels over caches of e4m3, compiled apart from the others to shorten the build.
#include "cuda/attention/mma_launch.cuh"

namespace quire::cuda {

void attention_mma_e4m3(const PagedAttentionParams& p, const DeviceWork& work,
                        cudaStream_t stream) {
  if (p.dtype == DType::kBFloat16) {
    attention_mma_of<bf16, e4m3>(p, work, stream);
  } else {
    attention_mma_of<f16, e4m3>(p, work, stream);
  }
}

int attention_mma_blocks_e4m3(const PagedAttentionParams& p, int columns) {
  return p.dtype == DType::kBFloat16 ? attention_mma_blocks_of<bf16, e4m3>(p, columns)
                                     : attention_mma_blocks_of<f16, e4m3>(p, columns);
}

}  // namespace quire::cuda
