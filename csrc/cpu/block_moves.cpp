// Moves of whole blocks: bytes only, so one copy serves every instruction set and element type.
#include <cstring>

#include "cpu/cpu_ops.h"
#include "ops/cache.h"

namespace quire::cpu {
namespace {

// Below this a second thread is not worth waking.
constexpr int64_t kSerialBytes = 64 << 10;

// A pair may read what an earlier one wrote, so pairs go in order.
void copy_within(const CopyBlocksParams& p, int64_t cache) {
  const int64_t bytes = p.block_bytes[cache];
  for (int64_t pair = 0; pair < p.num_pairs; ++pair) {
    const int64_t src = p.block_mapping[2 * pair];
    const int64_t dst = p.block_mapping[2 * pair + 1];
    if (src != dst)
      std::memcpy(p.caches[cache] + dst * bytes, p.caches[cache] + src * bytes, bytes);
  }
}

}  // namespace

// Caches are independent of each other.
void copy_blocks(const CopyBlocksParams& p, const KernelTable&, ThreadPool& pool) {
  const int64_t bytes_each = p.num_caches == 0 ? 0 : p.num_pairs * p.block_bytes[0];
  if (p.num_caches * bytes_each <= kSerialBytes) {
    for (int64_t cache = 0; cache < p.num_caches; ++cache) copy_within(p, cache);
    return;
  }
  pool.run(
      p.num_caches,
      [](void* params, int64_t cache, int) {
        copy_within(*static_cast<const CopyBlocksParams*>(params), cache);
      },
      const_cast<CopyBlocksParams*>(&p));
}

void swap_blocks(const SwapBlocksParams& p, const KernelTable&, ThreadPool&) {
  for (int64_t pair = 0; pair < p.num_pairs; ++pair) {
    const int64_t src = p.block_mapping[2 * pair];
    const int64_t dst = p.block_mapping[2 * pair + 1];
    std::memmove(p.dst + dst * p.block_bytes, p.src + src * p.block_bytes, p.block_bytes);
  }
}

}  // namespace quire::cpu
