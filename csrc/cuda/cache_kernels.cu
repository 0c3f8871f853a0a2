// Keys and values into their slots of the cache and out of them; keys rotated on the way where a
// model does that.
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/rotary.cuh"
#include "cuda/vector.h"
#include "dispatch.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;

// Calls body(is_key, row, cached) with where each head of a token's key and value lies among rows
// and in its slot: a warp for each.
template <typename T, typename Body>
__device__ void for_each_head(const CacheIoParams& p, int64_t token, const Body& body) {
  const int64_t slot = p.slot_mapping[token];
  if (slot < 0) return;  // padding
  const int64_t block = slot / p.block_size;
  const int64_t offset = slot % p.block_size;
  for (int64_t i = threadIdx.x / kWarpSize; i < 2 * p.num_kv_heads; i += kWarps) {
    const bool is_key = i < p.num_kv_heads;
    const int64_t head = is_key ? i : i - p.num_kv_heads;
    const CacheView& cache = is_key ? p.key_cache : p.value_cache;
    body(is_key, head_address<T>(is_key ? p.key : p.value, token, head),
         static_cast<T*>(cache.data) + block * cache.block_stride + offset * cache.token_stride +
             head * cache.head_stride);
  }
}

// A block for each token.
template <typename T, bool kIntoCache>
__global__ void __launch_bounds__(kThreads) cache_io_kernel(const CacheIoParams p) {
  const int lane = threadIdx.x % kWarpSize;
  for_each_head<T>(p, blockIdx.x, [&](bool, T* row, T* cached) {
    copy_elements(kIntoCache ? cached : row, kIntoCache ? row : cached, p.head_size, lane,
                  kWarpSize);
  });
}

// A block for each token: threads take the pairs of its query heads, then warps a head of its key
// or value each.
template <typename T>
__global__ void __launch_bounds__(kThreads) rotary_and_cache_kernel(const RotaryCacheParams p) {
  const int64_t token = blockIdx.x;
  const TokenRotation rotation(p.rotary, token);
  const int64_t num_pairs = p.rotary.num_heads * rotation.half;
  for (int64_t pair = threadIdx.x; pair < num_pairs; pair += kThreads) {
    T* x = head_address<T>(p.rotary.query, token, pair / rotation.half);
    rotation.rotate(x, pair % rotation.half, [x](int64_t d, T value) { x[d] = value; });
  }
  if (token >= p.cache.num_tokens) return;  // padding
  const int lane = threadIdx.x % kWarpSize;
  for_each_head<T>(p.cache, token, [&](bool is_key, const T* row, T* cached) {
    const int64_t rotated = is_key ? p.rotary.rotary_dim : 0;
    for (int64_t i = lane; i < rotated / 2; i += kWarpSize)
      rotation.rotate(row, i, [cached](int64_t d, T value) { cached[d] = value; });
    copy_elements(cached + rotated, row + rotated, p.cache.head_size - rotated, lane, kWarpSize);
  });
}

}  // namespace

void reshape_and_cache(const CacheIoParams& p, cudaStream_t stream) {
  QUIRE_DISPATCH_DTYPE(
      p.dtype, T,
      launch(cache_io_kernel<T, true>, grid_size(p.num_tokens), kThreads, 0, stream, p));
}

void gather_cached_kv(const CacheIoParams& p, cudaStream_t stream) {
  QUIRE_DISPATCH_DTYPE(
      p.dtype, T,
      launch(cache_io_kernel<T, false>, grid_size(p.num_tokens), kThreads, 0, stream, p));
}

void rotary_and_cache(const RotaryCacheParams& p, cudaStream_t stream) {
  QUIRE_DISPATCH_DTYPE(
      p.rotary.dtype, T,
      launch(rotary_and_cache_kernel<T>, grid_size(p.rotary.num_tokens), kThreads, 0, stream, p));
}

}  // namespace quire::cuda
