// Writes keys and values to their slots of the cache and reads them back; rotates keys on the way
// for models that do so.
#include "cuda/cache/common.h"
#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
#include "cuda/layers/rotary.cuh"
#include "cuda/ptx.h"
#include "cuda/vector.h"
#include "ops/rotary.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;
// Of a multiprocessor. Where none are asked for, the compiler spills registers to run more.
constexpr int kBlocks = 8;
constexpr int kBlocksThatRotate = 6;

// Calls body(is_key, scale, row, cached) for each head of a token's key and value: the scale of its
// cache, and where it lies among rows and in its slot. A warp for each.
template <typename T, typename Cached, typename Body>
__device__ void for_each_head(const CacheIoParams& p, int64_t token, const Body& body) {
  const int64_t slot = p.slot_mapping[token];
  if (slot < 0) return;  // padding
  const int64_t block = slot / p.block_size;
  const int64_t offset = slot % p.block_size;
  const int64_t num_rows = (p.value.data != nullptr ? 2 : 1) * p.num_kv_heads;
  for (int64_t i = threadIdx.x / kWarpSize; i < num_rows; i += kWarps) {
    const bool is_key = i < p.num_kv_heads;
    const int64_t head = is_key ? i : i - p.num_kv_heads;
    const CacheView& cache = is_key ? p.key_cache : p.value_cache;
    body(is_key, head_scale(is_key ? p.key_scales : p.value_scales, head),
         head_address<T>(is_key ? p.key : p.value, token, head),
         static_cast<Cached*>(cache.data) + block * cache.block_stride +
             offset * cache.token_stride + head * cache.head_stride);
  }
}

template <typename T>
__device__ __forceinline__ void set_cached(T* cached, T x, float) {
  *cached = x;
}
template <typename T>
__device__ __forceinline__ void set_cached(e4m3* cached, T x, float scale) {
  *cached = ptx::round_to_e4m3(to_float(x) / scale);
}

// Writes the elements of a row to the cache, with the lanes of a warp.
template <typename T>
__device__ void write_row(T* cached, const T* row, int64_t count, int lane, float) {
  copy_elements(cached, row, count, lane, kWarpSize);
}
template <typename T>
__device__ void write_row(e4m3* cached, const T* row, int64_t count, int lane, float scale) {
  for (int64_t i = lane; i < count; i += kWarpSize) set_cached(cached + i, row[i], scale);
}

// Reads them back.
template <typename T>
__device__ void read_row(T* row, const T* cached, int64_t count, int lane, float) {
  copy_elements(row, cached, count, lane, kWarpSize);
}
template <typename T>
__device__ void read_row(T* row, const e4m3* cached, int64_t count, int lane, float scale) {
  for (int64_t i = lane; i < count; i += kWarpSize)
    row[i] = from_float<T>(to_float(cached[i]) * scale);
}

// A block for each token.
template <typename T, typename Cached, bool kIntoCache>
__global__ void __launch_bounds__(kThreads, kBlocks) cache_io_kernel(const CacheIoParams p) {
  begin_kernel();
  const int lane = threadIdx.x % kWarpSize;
  for_each_head<T, Cached>(p, blockIdx.x, [&](bool, float scale, T* row, Cached* cached) {
    if constexpr (kIntoCache) {
      write_row(cached, row, p.head_size, lane, scale);
    } else {
      read_row(row, cached, p.head_size, lane, scale);
    }
  });
}

// A block for each token: threads take the pairs of its query heads, then warps a head of its key
// or value each.
template <typename T, typename Cached>
__global__ void __launch_bounds__(kThreads, kBlocksThatRotate)
    rotary_and_cache_kernel(const RotaryCacheParams p) {
  begin_kernel();
  const int64_t token = blockIdx.x;
  const TokenRotation rotation(p.rotary, token);
  const int64_t num_pairs = p.rotary.num_heads * rotation.half;
  for (int64_t pair = threadIdx.x; pair < num_pairs; pair += kThreads) {
    T* x = head_address<T>(p.rotary.query, token, pair / rotation.half);
    rotation.rotate(x, pair % rotation.half, [x](int64_t d, T value) { x[d] = value; });
  }
  if (token >= p.cache.num_tokens) return;  // padding
  const int lane = threadIdx.x % kWarpSize;
  for_each_head<T, Cached>(
      p.cache, token, [&](bool is_key, float scale, const T* row, Cached* cached) {
        const int64_t rotated = is_key ? p.rotary.rotary_dim : 0;
        for (int64_t i = lane; i < rotated / 2; i += kWarpSize) {
          rotation.rotate(row, i, [cached, scale](int64_t d, T value) {
            set_cached(cached + d, value, scale);
          });
        }
        write_row(cached + rotated, row + rotated, p.cache.head_size - rotated, lane, scale);
      });
}

}  // namespace

void reshape_and_cache(const CacheIoParams& p, cudaStream_t stream) {
  QUIRE_DISPATCH_CUDA_CACHE(
      p, T, Cached,
      launch(cache_io_kernel<T, Cached, true>, grid_size(p.num_tokens), kThreads, 0, stream, p));
}

void gather_cached_kv(const CacheIoParams& p, cudaStream_t stream) {
  QUIRE_DISPATCH_CUDA_CACHE(
      p, T, Cached,
      launch(cache_io_kernel<T, Cached, false>, grid_size(p.num_tokens), kThreads, 0, stream, p));
}

void rotary_and_cache(const RotaryCacheParams& p, cudaStream_t stream) {
  QUIRE_DISPATCH_CUDA_CACHE(p.cache, T, Cached,
                            launch(rotary_and_cache_kernel<T, Cached>,
                                   grid_size(p.rotary.num_tokens), kThreads, 0, stream, p));
}

}  // namespace quire::cuda
