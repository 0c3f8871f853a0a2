// The attention kernels that the field began with, on their own layout of the cache. Nothing is
// served with them: benchmarks and tests compare with them.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace quire::cuda {

struct SeedAttentionParams {
  void* out;                    // [N, H, D], dense heads
  const void* query;            // [N, H, D], dense heads
  const void* key_cache;        // [B, Hkv, D / x, BS, x] with x = 16 bytes of elements
  const void* value_cache;      // [B, Hkv, D, BS]
  const int32_t* block_tables;  // [N, MB]
  const int32_t* seq_lens;      // [N]
  const float* alibi_slopes;    // [H], or null
  int64_t out_stride;
  int64_t query_stride;
  int64_t block_stride;  // of both caches
  int64_t head_stride;   // of both caches
  int64_t block_table_stride;
  int64_t num_seqs;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_size;   // 64, 80 or 128
  int64_t block_size;  // 8, 16 or 32
  int64_t max_seq_len;
  float scale;
  bool is_partitioned;  // the second version
  DType dtype;
};

// Runs on the calling thread's stream.
void seed_attention(const SeedAttentionParams& p);

}  // namespace quire::cuda
