// Checks of the caches that the field began with, and what their kernels are given of them.
#pragma once

#include "core/tensor.h"
#include "seed/attention_v1.h"

namespace quire {

// Checks keys [B, Hkv, D / x, BS, x] and values [B, Hkv, D, BS] of the type and place of `rows`,
// which is called `name`.
void check_seed_caches(const char* name, const Tensor& rows, int64_t head_size,
                       const Tensor& key_cache, const Tensor& value_cache);

// Also that attention has a kernel for their shape and for queries `name` of `num_heads`, and block
// tables and lengths of `num_seqs`. Returns all but the query, the result and the scale.
cuda::SeedAttentionParams check_seed_attention(const char* name, const Tensor& rows,
                                               int64_t num_heads, int64_t head_size,
                                               const Tensor& key_cache, const Tensor& value_cache,
                                               const Tensor& block_tables, const Tensor& seq_lens,
                                               int64_t max_seq_len);

}  // namespace quire
