// Checks and bindings of the kernels that the field began with; only for GPUs.
#include "seed/bindings.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/tensor_caster.h"
#include "core/check.h"
#include "cuda/cuda_backend.h"
#include "ops/ops.h"
#include "seed/attention_v1.h"
#include "seed/cache_v1.h"
#include "seed/checks.h"
#include "seed/fused_decode.h"

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
  check_contiguous("query", query);
  check_shape("out", out, {query.shape[0], query.shape[1], query.shape[2]}, "[N, H, D]");
  check_dtype("out", out, query.dtype);
  check_contiguous("out", out);
  check_device("out", out, query.device);
  cuda::SeedAttentionParams p =
      check_seed_attention("query", query, query.shape[1], query.shape[2], key_cache, value_cache,
                           block_tables, seq_lens, max_seq_len);
  if (alibi_slopes) {
    check_shape("alibi_slopes", *alibi_slopes, {query.shape[1]}, "[H]");
    check_dtype("alibi_slopes", *alibi_slopes, DType::kFloat32);
    check_contiguous("alibi_slopes", *alibi_slopes);
    check_device("alibi_slopes", *alibi_slopes, query.device);
  }
  p.out = out.data;
  p.query = query.data;
  p.alibi_slopes = alibi_slopes ? static_cast<const float*>(alibi_slopes->data) : nullptr;
  p.out_stride = out.stride[0];
  p.query_stride = query.stride[0];
  p.scale = static_cast<float>(scale);
  p.is_partitioned = is_partitioned;
  cuda::seed_attention(p);
}

// Bias, rotary embedding, the cache and attention for the last token of each sequence. `qkv` is
// [N, H + 2 Hkv, D], queries, keys and values, or [N, 3, H, D], and `bias` the same without N; no
// `cos_sin_cache` [P, R] is no rotation. Writes `out` [N, H, D] and the caches.
void masked_multihead_attention(const Tensor& out, const Tensor& qkv,
                                const std::optional<Tensor>& bias,
                                const std::optional<Tensor>& cos_sin_cache, bool is_neox,
                                const Tensor& key_cache, const Tensor& value_cache,
                                const Tensor& block_tables, const Tensor& seq_lens, double scale,
                                int64_t max_seq_len) {
  check_shape("out", out, {-1, -1, -1}, "[N, H, D]");
  check_activation_dtype("out", out);
  check_contiguous("out", out);
  const int64_t num_heads = out.shape[1];
  const int64_t head_size = out.shape[2];
  cuda::FusedDecodeParams p{};
  p.attention = check_seed_attention("out", out, num_heads, head_size, key_cache, value_cache,
                                     block_tables, seq_lens, max_seq_len);
  const int64_t kv_heads = p.attention.num_kv_heads;
  const int64_t num_rows = num_heads + 2 * kv_heads;
  if (qkv.ndim == 4) {
    check_shape("qkv", qkv, {out.shape[0], 3, kv_heads, head_size}, "[N, 3, H, D]");
  } else {
    check_shape("qkv", qkv, {out.shape[0], num_rows, head_size}, "[N, H + 2 Hkv, D]");
  }
  if (qkv.ndim == 4 && kv_heads != num_heads) {
    fail("qkv: must be [N, H + 2 Hkv, D] where key_cache has fewer heads than out, got " +
         shape_text(qkv));
  }
  check_dtype("qkv", qkv, out.dtype);
  check_contiguous("qkv", qkv);
  check_device("qkv", qkv, out.device);
  if (bias) {
    if (bias->ndim == 3) {
      check_shape("bias", *bias, {3, kv_heads, head_size}, "[3, H, D]");
    } else {
      check_shape("bias", *bias, {num_rows, head_size}, "[H + 2 Hkv, D]");
    }
    if (bias->ndim != qkv.ndim - 1) fail("bias: must have the shape of a row of qkv");
    check_dtype("bias", *bias, out.dtype);
    check_contiguous("bias", *bias);
    check_device("bias", *bias, out.device);
    p.bias = bias->data;
  }
  if (cos_sin_cache) {
    check_shape("cos_sin_cache", *cos_sin_cache, {-1, -1}, "[P, R]");
    check_dtype("cos_sin_cache", *cos_sin_cache, DType::kFloat32);
    check_unit_stride("cos_sin_cache", *cos_sin_cache);
    check_device("cos_sin_cache", *cos_sin_cache, out.device);
    p.rotary_dim = cos_sin_cache->shape[1];
    if (p.rotary_dim % 2 != 0 || p.rotary_dim > head_size) {
      fail("cos_sin_cache: must have an even number of columns, at most the head size " +
           std::to_string(head_size) + ", got " + std::to_string(p.rotary_dim));
    }
    if (cos_sin_cache->shape[0] < max_seq_len) {
      fail("cos_sin_cache: must have a row for each of " + std::to_string(max_seq_len) +
           " positions, got " + std::to_string(cos_sin_cache->shape[0]));
    }
    p.cos_sin_cache = static_cast<const float*>(cos_sin_cache->data);
    p.cos_sin_stride = cos_sin_cache->stride[0];
  }
  p.is_neox = is_neox;
  p.attention.out = out.data;
  p.attention.query = qkv.data;
  p.attention.out_stride = num_heads * head_size;
  p.attention.query_stride = num_rows * head_size;
  p.attention.scale = static_cast<float>(scale);
  cuda::fused_decode(p);
}

cuda::SeedCacheParams check_seed_rows(const Tensor& key, const Tensor& value,
                                      const Tensor& key_cache, const Tensor& value_cache,
                                      const Tensor& slot_mapping) {
  check_shape("key", key, {-1, -1, -1}, "[T, Hkv, D]");
  check_shape("value", value, {key.shape[0], key.shape[1], key.shape[2]}, "[T, Hkv, D]");
  check_shape("slot_mapping", slot_mapping, {key.shape[0]}, "[T]");
  check_activation_dtype("key", key);
  check_dtype("value", value, key.dtype);
  check_dtype("slot_mapping", slot_mapping, DType::kInt64);
  check_unit_stride("key", key);
  check_unit_stride("value", value);
  check_contiguous("slot_mapping", slot_mapping);
  check_device("value", value, key.device);
  check_device("slot_mapping", slot_mapping, key.device);
  check_seed_caches("key", key, key.shape[2], key_cache, value_cache);
  if (key.shape[1] != value_cache.shape[1]) {
    fail("key: must have the " + std::to_string(value_cache.shape[1]) +
         " heads of key_cache, got " + std::to_string(key.shape[1]));
  }
  cuda::SeedCacheParams p{};
  p.key = {key.data, key.stride[0], key.stride[1]};
  p.value = {value.data, value.stride[0], value.stride[1]};
  p.key_cache = key_cache.data;
  p.value_cache = value_cache.data;
  p.slot_mapping = static_cast<const int64_t*>(slot_mapping.data);
  p.block_stride = value_cache.stride[0];
  p.head_stride = value_cache.stride[1];
  p.num_tokens = key.shape[0];
  p.num_kv_heads = key.shape[1];
  p.head_size = key.shape[2];
  p.block_size = value_cache.shape[3];
  p.dtype = key.dtype;
  return p;
}

// Writes rows to their slots.
void reshape_and_cache_v1(const Tensor& key, const Tensor& value, const Tensor& key_cache,
                          const Tensor& value_cache, const Tensor& slot_mapping) {
  cuda::seed_reshape_and_cache(check_seed_rows(key, value, key_cache, value_cache, slot_mapping));
}

// Reads the rows of slots.
void gather_cached_kv_v1(const Tensor& key_out, const Tensor& value_out, const Tensor& key_cache,
                         const Tensor& value_cache, const Tensor& slot_mapping) {
  cuda::seed_gather_cached_kv(
      check_seed_rows(key_out, value_out, key_cache, value_cache, slot_mapping));
}

// A cache of either layout in the four dimensions of the served ones, whose blocks are dense, too.
Tensor as_served(const char* name, Tensor cache) {
  check_contiguous(name, cache);
  if (cache.ndim != 5) return cache;
  cache.ndim = 4;
  cache.shape[3] *= cache.shape[4];
  cache.stride[3] = 1;
  return cache;
}

std::vector<Tensor> as_served(const char* name, std::vector<Tensor> caches) {
  for (Tensor& cache : caches) cache = as_served(name, cache);
  return caches;
}

// Blocks are contiguous: the served operations move them.
void copy_blocks_v1(const std::vector<Tensor>& key_caches, const std::vector<Tensor>& value_caches,
                    const Tensor& block_mapping) {
  cuda::CudaBackend backend;
  const std::vector<Tensor> keys = as_served("key_caches", key_caches);
  const std::vector<Tensor> values = as_served("value_caches", value_caches);
  ops::copy_blocks(backend, keys, values, block_mapping);
}

void swap_blocks_v1(const Tensor& src_cache, const Tensor& dst_cache, const Tensor& block_mapping) {
  cuda::CudaBackend backend;
  const Tensor src = as_served("src_cache", src_cache);
  const Tensor dst = as_served("dst_cache", dst_cache);
  ops::swap_blocks(backend, src, dst, block_mapping);
}

template <typename... Args>
void define(pybind11::module_& module, void (*follow_stream)(), const char* name,
            void (*op)(Args...)) {
  module.def(name, [follow_stream, op](Args... args) {
    follow_stream();
    const pybind11::gil_scoped_release released;
    op(args...);
  });
}

}  // namespace

void bind_seed(pybind11::module_& module, void (*follow_stream)()) {
  define(module, follow_stream, "paged_attention_v1", paged_attention_v1);
  define(module, follow_stream, "masked_multihead_attention", masked_multihead_attention);
  define(module, follow_stream, "reshape_and_cache_v1", reshape_and_cache_v1);
  define(module, follow_stream, "gather_cached_kv_v1", gather_cached_kv_v1);
  define(module, follow_stream, "copy_blocks_v1", copy_blocks_v1);
  define(module, follow_stream, "swap_blocks_v1", swap_blocks_v1);
}

}  // namespace quire
