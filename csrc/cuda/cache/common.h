// Shared by kernels that read or write caches.
#pragma once

#include "core/dispatch.h"
#include "core/params.h"
#include "cuda/e4m3.h"

// Runs the statements with `T` bound to the activations' type and `Cached` to the caches'.
#define QUIRE_DISPATCH_CUDA_CACHE(p, T, Cached, ...)                                         \
  QUIRE_DISPATCH_DTYPE(                                                                      \
      (p).dtype, T,                                                                          \
      QUIRE_DISPATCH_CACHE((p).cache_dtype, (p).dtype, T, ::quire::DType::kFloat8E4M3, e4m3, \
                           Cached, __VA_ARGS__))

namespace quire::cuda {

// The factor of the elements of a head's cache.
__device__ __forceinline__ float head_scale(const float* scales, int64_t kv_head) {
  return scales != nullptr ? scales[kv_head] : 1.f;
}

}  // namespace quire::cuda
