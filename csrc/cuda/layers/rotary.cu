// Rotary position embedding in place; elements beyond the rotary dimension are left alone.
#include "core/dispatch.h"
#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
#include "cuda/layers/rotary.cuh"
#include "ops/rotary.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;

// A block for each token; threads take the pairs of all its query and key heads.
template <typename T>
__global__ void __launch_bounds__(kThreads) rotary_kernel(const RotaryParams p) {
  begin_kernel();
  const int64_t token = blockIdx.x;
  const TokenRotation rotation(p, token);
  const int64_t num_pairs = (p.num_heads + p.num_kv_heads) * rotation.half;
  for (int64_t pair = threadIdx.x; pair < num_pairs; pair += kThreads) {
    const int64_t head = pair / rotation.half;
    T* x = head < p.num_heads ? head_address<T>(p.query, token, head)
                              : head_address<T>(p.key, token, head - p.num_heads);
    rotation.rotate(x, pair % rotation.half, [x](int64_t d, T value) { x[d] = value; });
  }
}

}  // namespace

void rotary_embedding(const RotaryParams& p, cudaStream_t stream) {
  if (p.rotary_dim == 0) return;
  QUIRE_DISPATCH_DTYPE(p.dtype, T,
                       launch(rotary_kernel<T>, grid_size(p.num_tokens), kThreads, 0, stream, p));
}

}  // namespace quire::cuda
