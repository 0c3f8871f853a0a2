// Checks and the binding of the attention kernels that the field began with; only for GPUs.
#include "seed/bindings.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>

#include "bindings/tensor_caster.h"
#include "core/check.h"
#include "seed/attention_v1.h"

namespace quire {
namespace {

// One query token of each sequence, over caches of their own layout. `max_seq_len` is the largest
// of `seq_lens`; `is_partitioned` chooses the second version.
void paged_attention_v1(const Tensor& out, const Tensor& query, const Tensor& key_cache,
                        const Tensor& value_cache, const Tensor& block_tables,
                        const Tensor& seq_lens, double scale,
                        const std::optional<Tensor>& alibi_slopes, int64_t max_seq_len,
                        bool is_partitioned) {
  check_shape("query", query, {-1, -1, -1}, "[N, H, D]");
  check_activation_dtype("query", query);
  const int64_t x = 16 / element_size(query.dtype);
  const int64_t head_size = query.shape[2];
  check_shape("out", out, {query.shape[0], query.shape[1], head_size}, "[N, H, D]");
  check_shape("value_cache", value_cache, {-1, -1, head_size, -1}, "[B, Hkv, D, BS]");
  const int64_t kv_heads = value_cache.shape[1];
  const int64_t block_size = value_cache.shape[3];
  check_shape("key_cache", key_cache,
              {value_cache.shape[0], kv_heads, head_size / x, block_size, x},
              "[B, Hkv, D / x, BS, x]");
  check_shape("block_tables", block_tables, {query.shape[0], -1}, "[N, MB]");
  check_shape("seq_lens", seq_lens, {query.shape[0]}, "[N]");
  for (const auto& [name, tensor] : {std::pair<const char*, const Tensor&>{"out", out},
                                     {"key_cache", key_cache},
                                     {"value_cache", value_cache}}) {
    check_dtype(name, tensor, query.dtype);
    check_contiguous(name, tensor);
    check_device(name, tensor, query.device);
  }
  check_contiguous("query", query);
  check_dtype("block_tables", block_tables, DType::kInt32);
  check_dtype("seq_lens", seq_lens, DType::kInt32);
  check_unit_stride("block_tables", block_tables);
  check_contiguous("seq_lens", seq_lens);
  check_device("block_tables", block_tables, query.device);
  check_device("seq_lens", seq_lens, query.device);
  if (kv_heads == 0 || query.shape[1] % kv_heads != 0) {
    fail("query: must have a multiple of key_cache's " + std::to_string(kv_heads) + " heads, got " +
         std::to_string(query.shape[1]));
  }
  if (head_size != 64 && head_size != 80 && head_size != 128)
    fail("query: head size must be 64, 80 or 128, got " + std::to_string(head_size));
  if (block_size != 8 && block_size != 16 && block_size != 32)
    fail("key_cache: block size must be 8, 16 or 32, got " + std::to_string(block_size));
  check_range("max_seq_len", max_seq_len, 1, block_tables.shape[1] * block_size + 1);
  if (alibi_slopes) {
    check_shape("alibi_slopes", *alibi_slopes, {query.shape[1]}, "[H]");
    check_dtype("alibi_slopes", *alibi_slopes, DType::kFloat32);
    check_contiguous("alibi_slopes", *alibi_slopes);
    check_device("alibi_slopes", *alibi_slopes, query.device);
  }

  cuda::SeedAttentionParams p{};
  p.out = out.data;
  p.query = query.data;
  p.key_cache = key_cache.data;
  p.value_cache = value_cache.data;
  p.block_tables = static_cast<const int32_t*>(block_tables.data);
  p.seq_lens = static_cast<const int32_t*>(seq_lens.data);
  p.alibi_slopes = alibi_slopes ? static_cast<const float*>(alibi_slopes->data) : nullptr;
  p.out_stride = out.stride[0];
  p.query_stride = query.stride[0];
  p.block_stride = value_cache.stride[0];
  p.head_stride = value_cache.stride[1];
  p.block_table_stride = block_tables.stride[0];
  p.num_seqs = query.shape[0];
  p.num_heads = query.shape[1];
  p.num_kv_heads = kv_heads;
  p.head_size = head_size;
  p.block_size = block_size;
  p.max_seq_len = max_seq_len;
  p.scale = static_cast<float>(scale);
  p.is_partitioned = is_partitioned;
  p.dtype = query.dtype;
  cuda::seed_attention(p);
}

}  // namespace

void bind_seed(pybind11::module_& module, void (*follow_stream)()) {
  module.def(
      "paged_attention_v1",
      [follow_stream](const Tensor& out, const Tensor& query, const Tensor& key_cache,
                      const Tensor& value_cache, const Tensor& block_tables, const Tensor& seq_lens,
                      double scale, const std::optional<Tensor>& alibi_slopes, int64_t max_seq_len,
                      bool is_partitioned) {
        follow_stream();
        const pybind11::gil_scoped_release released;
        paged_attention_v1(out, query, key_cache, value_cache, block_tables, seq_lens, scale,
                           alibi_slopes, max_seq_len, is_partitioned);
      });
}

}  // namespace quire
