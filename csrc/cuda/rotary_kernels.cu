// Rotary position embedding (Su et al. 2021), in place. NeoX style pairs element i with i + R/2,
// GPT-J style 2i with 2i + 1; elements beyond the rotary dimension R are left alone.
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "dispatch.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;

// A block for each token; threads take the pairs of all its query and key heads.
template <typename T>
__global__ void __launch_bounds__(kThreads) rotary_kernel(const RotaryParams p) {
  const int64_t token = blockIdx.x;
  const int64_t half = p.rotary_dim / 2;
  const float* cosines = p.cos_sin_cache + p.positions[token] * p.cos_sin_stride;
  const float* sines = cosines + half;
  const int64_t num_pairs = (p.num_heads + p.num_kv_heads) * half;
  for (int64_t pair = threadIdx.x; pair < num_pairs; pair += kThreads) {
    const int64_t head = pair / half;
    const int64_t i = pair % half;
    const bool is_query = head < p.num_heads;
    const RowsView& rows = is_query ? p.query : p.key;
    T* x = static_cast<T*>(rows.data) + token * rows.token_stride +
           (is_query ? head : head - p.num_heads) * rows.head_stride;
    T* first = x + (p.is_neox ? i : 2 * i);
    T* second = p.is_neox ? first + half : first + 1;
    const float a = to_float(*first);
    const float b = to_float(*second);
    *first = from_float<T>(a * cosines[i] - b * sines[i]);
    *second = from_float<T>(b * cosines[i] + a * sines[i]);
  }
}

}  // namespace

void rotary_embedding(const RotaryParams& p, cudaStream_t stream) {
  if (p.rotary_dim == 0) return;
  QUIRE_DISPATCH_DTYPE(p.dtype, T,
                       launch(rotary_kernel<T>, grid_size(p.num_tokens), kThreads, 0, stream, p));
}

}  // namespace quire::cuda
