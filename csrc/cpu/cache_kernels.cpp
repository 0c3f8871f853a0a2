#include "cpu/cache_kernels.h"

#include <cstring>

namespace quire::cpu {
namespace {

// Below this a second thread is not worth waking.
constexpr int64_t kSerialBytes = 64 << 10;

template <typename Body>
void for_each(ThreadPool& pool, int64_t count, int64_t bytes_each, const Body& body) {
  if (count * bytes_each <= kSerialBytes) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  pool.run(
      count, [](void* context, int64_t i, int) { (*static_cast<const Body*>(context))(i); },
      const_cast<Body*>(&body));
}

// Calls copy(row, slot) with the addresses of a token's head in `rows` and in `cache`.
template <typename Copy>
void for_each_head(const CacheIoParams& p, const RowsView& rows, const CacheView& cache,
                   int64_t token, const Copy& copy) {
  const int64_t slot = p.slot_mapping[token];
  char* row = static_cast<char*>(rows.data) + token * rows.token_stride * p.element_size;
  char* cached = static_cast<char*>(cache.data) + (slot / p.block_size * cache.block_stride +
                                                   slot % p.block_size * cache.token_stride) *
                                                      p.element_size;
  for (int64_t head = 0; head < p.num_kv_heads; ++head) {
    copy(row + head * rows.head_stride * p.element_size,
         cached + head * cache.head_stride * p.element_size);
  }
}

template <typename Copy>
void for_each_slot(const CacheIoParams& p, ThreadPool& pool, const Copy& copy) {
  const int64_t token_bytes = 2 * p.num_kv_heads * p.head_size * p.element_size;
  for_each(pool, p.num_tokens, token_bytes, [&](int64_t token) {
    if (p.slot_mapping[token] < 0) return;  // padding
    for_each_head(p, p.key, p.key_cache, token, copy);
    for_each_head(p, p.value, p.value_cache, token, copy);
  });
}

}  // namespace

void reshape_and_cache(const CacheIoParams& p, ThreadPool& pool) {
  const size_t bytes = p.head_size * p.element_size;
  for_each_slot(p, pool, [bytes](char* row, char* cached) { std::memcpy(cached, row, bytes); });
}

void gather_cached_kv(const CacheIoParams& p, ThreadPool& pool) {
  const size_t bytes = p.head_size * p.element_size;
  for_each_slot(p, pool, [bytes](char* row, char* cached) { std::memcpy(row, cached, bytes); });
}

// A pair may read what an earlier one wrote, so pairs go in order; caches are independent of each
// other.
void copy_blocks(const CopyBlocksParams& p, ThreadPool& pool) {
  const int64_t bytes_each = p.num_caches == 0 ? 0 : p.num_pairs * p.block_bytes[0];
  for_each(pool, p.num_caches, bytes_each, [&](int64_t cache) {
    const int64_t bytes = p.block_bytes[cache];
    for (int64_t pair = 0; pair < p.num_pairs; ++pair) {
      const int64_t src = p.block_mapping[2 * pair];
      const int64_t dst = p.block_mapping[2 * pair + 1];
      if (src != dst)
        std::memcpy(p.caches[cache] + dst * bytes, p.caches[cache] + src * bytes, bytes);
    }
  });
}

void swap_blocks(const SwapBlocksParams& p, ThreadPool&) {
  for (int64_t pair = 0; pair < p.num_pairs; ++pair) {
    const int64_t src = p.block_mapping[2 * pair];
    const int64_t dst = p.block_mapping[2 * pair + 1];
    std::memmove(p.dst + dst * p.block_bytes, p.src + src * p.block_bytes, p.block_bytes);
  }
}

}  // namespace quire::cpu
