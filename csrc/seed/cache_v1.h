// Keys and values into the caches that the field began with and back. Nothing is served with them:
// benchmarks and tests compare with them. Blocks are contiguous, so that the served operations
// (cuda/cache/block_moves.cu) copy and swap them.
#pragma once

#include <cstdint>

#include "core/params.h"

namespace quire::cuda {

struct SeedCacheParams {
  RowsView key;                 // [T, Hkv, D]
  RowsView value;               // [T, Hkv, D]
  void* key_cache;              // [B, Hkv, D / x, BS, x] with x = 16 bytes of elements
  void* value_cache;            // [B, Hkv, D, BS]
  const int64_t* slot_mapping;  // [T], block * block_size + offset; negative rows are padding
  int64_t block_stride;         // of both caches
  int64_t head_stride;          // of both caches
  int64_t num_tokens;
  int64_t num_kv_heads;
  int64_t head_size;  // a multiple of x
  int64_t block_size;
  DType dtype;
};

// Write rows to their slots, and read them back. Both run on the calling thread's stream.
void seed_reshape_and_cache(const SeedCacheParams& p);
void seed_gather_cached_kv(const SeedCacheParams& p);

}  // namespace quire::cuda
