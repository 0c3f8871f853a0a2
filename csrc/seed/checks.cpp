#include "seed/checks.h"

#include <string>

#include "core/check.h"

namespace quire {

void check_seed_caches(const char* name, const Tensor& rows, int64_t head_size,
                       const Tensor& key_cache, const Tensor& value_cache) {
  const int64_t x = 16 / element_size(rows.dtype);
  if (head_size % x != 0) {
    fail(std::string(name) + ": head size must be a multiple of " + std::to_string(x) + ", got " +
         std::to_string(head_size));
  }
  check_shape("value_cache", value_cache, {-1, -1, head_size, -1}, "[B, Hkv, D, BS]");
  check_shape("key_cache", key_cache,
              {value_cache.shape[0], value_cache.shape[1], head_size / x, value_cache.shape[3], x},
              "[B, Hkv, D / x, BS, x]");
  check_dtype("key_cache", key_cache, rows.dtype);
  check_dtype("value_cache", value_cache, rows.dtype);
  check_contiguous("key_cache", key_cache);
  check_contiguous("value_cache", value_cache);
  check_device("key_cache", key_cache, rows.device);
  check_device("value_cache", value_cache, rows.device);
}

cuda::SeedAttentionParams check_seed_attention(const char* name, const Tensor& rows,
                                               int64_t num_heads, int64_t head_size,
                                               const Tensor& key_cache, const Tensor& value_cache,
                                               const Tensor& block_tables, const Tensor& seq_lens,
                                               int64_t max_seq_len) {
  check_seed_caches(name, rows, head_size, key_cache, value_cache);
  const int64_t kv_heads = value_cache.shape[1];
  const int64_t block_size = value_cache.shape[3];
  if (kv_heads == 0 || num_heads % kv_heads != 0) {
    fail(std::string(name) + ": must have a multiple of key_cache's " + std::to_string(kv_heads) +
         " heads, got " + std::to_string(num_heads));
  }
  if (head_size != 64 && head_size != 80 && head_size != 128) {
    fail(std::string(name) + ": head size must be 64, 80 or 128, got " + std::to_string(head_size));
  }
  if (block_size != 8 && block_size != 16 && block_size != 32)
    fail("key_cache: block size must be 8, 16 or 32, got " + std::to_string(block_size));
  check_shape("block_tables", block_tables, {rows.shape[0], -1}, "[N, MB]");
  check_shape("seq_lens", seq_lens, {rows.shape[0]}, "[N]");
  check_dtype("block_tables", block_tables, DType::kInt32);
  check_dtype("seq_lens", seq_lens, DType::kInt32);
  check_unit_stride("block_tables", block_tables);
  check_contiguous("seq_lens", seq_lens);
  check_device("block_tables", block_tables, rows.device);
  check_device("seq_lens", seq_lens, rows.device);
  check_range("max_seq_len", max_seq_len, 1, block_tables.shape[1] * block_size + 1);

  cuda::SeedAttentionParams p{};
  p.key_cache = key_cache.data;
  p.value_cache = value_cache.data;
  p.block_tables = static_cast<const int32_t*>(block_tables.data);
  p.seq_lens = static_cast<const int32_t*>(seq_lens.data);
  p.block_stride = value_cache.stride[0];
  p.head_stride = value_cache.stride[1];
  p.block_table_stride = block_tables.stride[0];
  p.num_seqs = rows.shape[0];
  p.num_heads = num_heads;
  p.num_kv_heads = kv_heads;
  p.head_size = head_size;
  p.block_size = block_size;
  p.max_seq_len = max_seq_len;
  p.dtype = rows.dtype;
  return p;
}

}  // namespace quire
