// Keys and values into the paged cache and out of it, and blocks from place to place.
#include <algorithm>
#include <unordered_set>
#include <vector>

#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;

// Copies `bytes` with the threads of a block, sixteen bytes at a time where both sides allow it.
__device__ void copy_bytes(char* dst, const char* src, int64_t bytes, int64_t first,
                           int64_t stride) {
  const uintptr_t both = reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src) |
                         static_cast<uintptr_t>(bytes);
  if (both % sizeof(uint4) == 0) {
    const auto* from = reinterpret_cast<const uint4*>(src);
    auto* to = reinterpret_cast<uint4*>(dst);
    const auto count = bytes / static_cast<int64_t>(sizeof(uint4));
    for (int64_t i = first; i < count; i += stride) to[i] = from[i];
  } else {
    for (int64_t i = first; i < bytes; i += stride) dst[i] = src[i];
  }
}

// A block for each token, a warp for each head of its key or value.
template <bool kIntoCache>
__global__ void __launch_bounds__(kThreads) cache_io_kernel(const CacheIoParams p) {
  const int64_t token = blockIdx.x;
  const int64_t slot = p.slot_mapping[token];
  if (slot < 0) return;  // padding
  const int lane = threadIdx.x % kWarpSize;
  for (int64_t i = threadIdx.x / kWarpSize; i < 2 * p.num_kv_heads; i += kThreads / kWarpSize) {
    const bool is_key = i < p.num_kv_heads;
    const int64_t head = is_key ? i : i - p.num_kv_heads;
    const RowsView& rows = is_key ? p.key : p.value;
    const CacheView& cache = is_key ? p.key_cache : p.value_cache;
    char* row = static_cast<char*>(rows.data) +
                (token * rows.token_stride + head * rows.head_stride) * p.element_size;
    char* cached = static_cast<char*>(cache.data) +
                   (slot / p.block_size * cache.block_stride +
                    slot % p.block_size * cache.token_stride + head * cache.head_stride) *
                       p.element_size;
    copy_bytes(kIntoCache ? cached : row, kIntoCache ? row : cached, p.head_size * p.element_size,
               lane, kWarpSize);
  }
}

// What one launch copies, small enough to be passed by value: nothing has to be on the device
// before it.
struct CopyWave {
  static constexpr int kMaxCaches = 256;
  static constexpr int kMaxPairs = 192;

  char* caches[kMaxCaches];
  int64_t block_bytes;
  int32_t num_pairs;
  struct {
    int32_t src;
    int32_t dst;
  } pairs[kMaxPairs];
};
static_assert(sizeof(CopyWave) <= 4096 - 64, "more than a kernel's arguments may take");

// A block for each cache and pair.
__global__ void __launch_bounds__(kThreads) copy_blocks_kernel(const CopyWave wave) {
  char* cache = wave.caches[blockIdx.x];
  const auto pair = wave.pairs[blockIdx.y];
  copy_bytes(cache + pair.dst * wave.block_bytes, cache + pair.src * wave.block_bytes,
             wave.block_bytes, threadIdx.x, kThreads);
}

// Cuts pairs, which are to be applied in order, into runs within which the order is all the same:
// no block is written that another pair of the run reads or writes.
std::vector<std::pair<int64_t, int64_t>> independent_runs(const int64_t* pairs, int64_t count) {
  std::vector<std::pair<int64_t, int64_t>> runs;
  std::unordered_set<int64_t> read;
  std::unordered_set<int64_t> written;
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t src = pairs[2 * i];
    const int64_t dst = pairs[2 * i + 1];
    const bool depends = written.count(src) > 0 || written.count(dst) > 0 || read.count(dst) > 0;
    if (depends || i - begin == CopyWave::kMaxPairs) {
      runs.emplace_back(begin, i);
      begin = i;
      read.clear();
      written.clear();
    }
    read.insert(src);
    written.insert(dst);
  }
  if (begin < count) runs.emplace_back(begin, count);
  return runs;
}

}  // namespace

void reshape_and_cache(const CacheIoParams& p, cudaStream_t stream) {
  launch(cache_io_kernel<true>, grid_size(p.num_tokens), kThreads, 0, stream, p);
}

void gather_cached_kv(const CacheIoParams& p, cudaStream_t stream) {
  launch(cache_io_kernel<false>, grid_size(p.num_tokens), kThreads, 0, stream, p);
}

void copy_blocks(const CopyBlocksParams& p, cudaStream_t stream) {
  for (const auto& [begin, end] : independent_runs(p.block_mapping, p.num_pairs)) {
    CopyWave wave{};
    for (int64_t i = begin; i < end; ++i) {
      const auto src = static_cast<int32_t>(p.block_mapping[2 * i]);
      const auto dst = static_cast<int32_t>(p.block_mapping[2 * i + 1]);
      if (src != dst) wave.pairs[wave.num_pairs++] = {src, dst};
    }
    // Caches of one block size go together: all layers in one launch, as a rule.
    for (int64_t cache = 0; cache < p.num_caches;) {
      wave.block_bytes = p.block_bytes[cache];
      int count = 0;
      while (cache < p.num_caches && count < CopyWave::kMaxCaches &&
             p.block_bytes[cache] == wave.block_bytes) {
        wave.caches[count++] = p.caches[cache++];
      }
      launch(copy_blocks_kernel, dim3(count, wave.num_pairs), kThreads, 0, stream, wave);
    }
  }
}

void swap_blocks(const SwapBlocksParams& p, cudaStream_t stream) {
  for (int64_t begin = 0; begin < p.num_pairs;) {
    const int64_t src = p.block_mapping[2 * begin];
    const int64_t dst = p.block_mapping[2 * begin + 1];
    int64_t run = 1;  // neighbours on both sides are one copy
    while (begin + run < p.num_pairs && p.block_mapping[2 * (begin + run)] == src + run &&
           p.block_mapping[2 * (begin + run) + 1] == dst + run) {
      ++run;
    }
    check(cudaMemcpyAsync(p.dst + dst * p.block_bytes, p.src + src * p.block_bytes,
                          run * p.block_bytes, cudaMemcpyDefault, stream),
          "swap_blocks");
    begin += run;
  }
}

}  // namespace quire::cuda
