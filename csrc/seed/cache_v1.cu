// Writes keys and values to their slots of the caches that the field began with, and reads them
// back.
#include "core/dispatch.h"
#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
#include "cuda/layers/rotary.cuh"
#include "cuda/vector.h"
#include "seed/cache_v1.h"
#include "seed/layout_v1.cuh"

namespace quire::cuda {
namespace seed {
namespace {

constexpr int kCacheThreads = 128;
// Of a multiprocessor. Where none are asked for, the compiler spills registers to run more.
constexpr int kCacheBlocks = 8;

// A block for each token. A thread takes 16 bytes of a key, which lie together on both sides, and
// single elements of a value, which lie a block's tokens apart.
template <typename T, bool kIntoCache>
__global__ void __launch_bounds__(kCacheThreads, kCacheBlocks)
    cache_v1_kernel(const SeedCacheParams p) {
  begin_kernel();
  constexpr int kX = kElementsOf16Bytes<T>;
  const int64_t token = blockIdx.x;
  const int64_t slot = p.slot_mapping[token];
  if (slot < 0) return;  // padding
  const int64_t block = slot / p.block_size;
  const int64_t offset = slot % p.block_size;
  T* keys = static_cast<T*>(p.key_cache) + block * p.block_stride;
  T* values = static_cast<T*>(p.value_cache) + block * p.block_stride;

  for (int64_t i = threadIdx.x * kX; i < p.num_kv_heads * p.head_size; i += kCacheThreads * kX) {
    const int64_t head = i / p.head_size;
    const int64_t d = i % p.head_size;
    T* row = head_address<T>(p.key, token, head) + d;
    T* cached = keys + head * p.head_stride + key_index<T>(d, offset, p.block_size);
    copy_elements(kIntoCache ? cached : row, kIntoCache ? row : cached, kX, 0, 1);
  }
  for (int64_t i = threadIdx.x; i < p.num_kv_heads * p.head_size; i += kCacheThreads) {
    const int64_t head = i / p.head_size;
    const int64_t d = i % p.head_size;
    T* element = head_address<T>(p.value, token, head) + d;
    T* cached = values + head * p.head_stride + value_index(d, offset, p.block_size);
    if constexpr (kIntoCache) {
      *cached = *element;
    } else {
      *element = *cached;
    }
  }
}

template <bool kIntoCache>
void run(const SeedCacheParams& p) {
  QUIRE_DISPATCH_DTYPE(p.dtype, T,
                       launch(cache_v1_kernel<T, kIntoCache>, grid_size(p.num_tokens),
                              kCacheThreads, 0, current_stream(), p));
}

}  // namespace
}  // namespace seed

void seed_reshape_and_cache(const SeedCacheParams& p) {
  seed::run<true>(p);
}

void seed_gather_cached_kv(const SeedCacheParams& p) {
  seed::run<false>(p);
}

}  // namespace quire::cuda
