// Moves of whole blocks of the cache.
#include <algorithm>
#include <unordered_set>
#include <vector>

#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
#include "cuda/vector.h"
#include "ops/cache.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;

// The copies of one launch, small enough to be passed by value: nothing has to be uploaded first.
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
  begin_kernel();
  char* cache = wave.caches[blockIdx.x];
  const auto pair = wave.pairs[blockIdx.y];
  copy_elements(cache + pair.dst * wave.block_bytes, cache + pair.src * wave.block_bytes,
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

// `caches`, `block_bytes` and `block_mapping` are in host memory, which may be freed on return.
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

// `block_mapping` is in host memory; `src` and `dst` may be anywhere.
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
