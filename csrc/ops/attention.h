// Paged attention: what its kernels are given, and the checks of its arguments.
#pragma once

#include "core/params.h"
#include "ops/cache.h"

namespace quire {

struct PagedAttentionParams {
  RowsView out;    // [T, H, Dv]
  RowsView query;  // [T, H, D]
  CacheView key_cache;
  CacheView value_cache;           // rows of value_size; may be the beginnings of the keys' rows
  const int32_t* block_tables;     // [N, MB]; of a plan [R, MB] or null
  const int64_t* table_rows;       // [N], of a plan: which of the R tables is each sequence's
  const int32_t* seq_lens;         // [N], keys and values including those of this chunk
  const int32_t* query_start_loc;  // [N + 1]
  const float* alibi_slopes;       // [H], or null
  const float* sinks;              // [H], or null
  const float* key_scales;         // [Hkv], of float8 caches; null where all are 1
  const float* value_scales;       // [Hkv]
  int64_t block_table_stride;
  int64_t num_tokens;  // T; rows from query_start_loc[N] on are not written
  int64_t num_seqs;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_size;   // D, of queries and keys
  int64_t value_size;  // Dv
  int64_t block_size;
  int64_t sliding_window;  // keys with q_pos - k_pos < window; INT64_MAX without one
  float scale;
  float soft_cap;             // 0 without one
  const AttentionPlan* plan;  // of the same backend and step; or null
  DType dtype;
  DType cache_dtype;      // the same, or a quantised one
  int64_t max_query_len;  // of a plan for captured graphs: the most rows of a sequence
};

}  // namespace quire

#if defined(QUIRE_COMPILE_CHECKS)
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "core/check.h"
#include "ops/ops.h"

namespace quire::ops {
namespace {

constexpr int64_t kMinBlockSize = 8;
constexpr int64_t kMaxBlockSize = 256;

void check_tensors(const Backend& backend, const Tensor& out, const Tensor& query,
                   const Tensor& key_cache, const Tensor& value_cache, const Tensor& block_tables,
                   const Tensor& seq_lens, const Tensor& query_start_loc) {
  check_shape("query", query, {-1, -1, -1}, "[T, H, D]");
  check_shape("out", out, {query.shape[0], query.shape[1], -1}, "[T, H, Dv]");
  check_shape("block_tables", block_tables, {-1, -1}, "[N, MB]");
  check_shape("seq_lens", seq_lens, {block_tables.shape[0]}, "[N]");
  check_shape("query_start_loc", query_start_loc, {block_tables.shape[0] + 1}, "[N + 1]");
  check_activation_dtype("query", query);
  check_dtype("out", out, query.dtype);
  check_dtype("block_tables", block_tables, DType::kInt32);
  check_dtype("seq_lens", seq_lens, DType::kInt32);
  check_dtype("query_start_loc", query_start_loc, DType::kInt32);
  check_unit_stride("query", query);
  check_unit_stride("out", out);
  check_unit_stride("block_tables", block_tables);
  check_contiguous("seq_lens", seq_lens);
  check_contiguous("query_start_loc", query_start_loc);
  check_device("out", out, query.device);
  check_device("block_tables", block_tables, query.device);
  check_device("seq_lens", seq_lens, query.device);
  check_device("query_start_loc", query_start_loc, query.device);
  check_caches(backend, "query", query, -1, key_cache, value_cache, out.shape[2]);
}

void check_head_size(const char* name, int64_t size) {
  if (size == 0 || size % 8 != 0 || size > kMaxHeadSize) {
    fail(std::string(name) + ": head size must be a multiple of 8 up to " +
         std::to_string(kMaxHeadSize) + ", got " + std::to_string(size));
  }
}

// `name` is that of what has `value_size` elements a head.
void check_sizes(const Tensor& query, const Tensor& key_cache, const char* name,
                 int64_t value_size) {
  const int64_t heads = query.shape[1];
  const int64_t kv_heads = key_cache.shape[1];
  const int64_t block_size = key_cache.shape[2];
  if (kv_heads == 0 || heads == 0 || heads % kv_heads != 0) {
    fail("query: must have a multiple of key_cache's " + std::to_string(kv_heads) + " heads, got " +
         std::to_string(heads));
  }
  check_head_size("query", query.shape[2]);
  check_head_size(name, value_size);
  if (block_size < kMinBlockSize || block_size > kMaxBlockSize ||
      (block_size & (block_size - 1)) != 0) {
    fail("key_cache: block size must be a power of two in [" + std::to_string(kMinBlockSize) +
         ", " + std::to_string(kMaxBlockSize) + "], got " + std::to_string(block_size));
  }
}

// Lengths fit the query and the tables, and every block that will be read exists.
void check_sequences(const PagedAttentionParams& p, int64_t num_tokens, int64_t table_width,
                     int64_t num_blocks) {
  if (p.query_start_loc[0] != 0)
    fail("query_start_loc[0]: must be 0, got " + std::to_string(p.query_start_loc[0]));
  for (int64_t i = 0; i < p.num_seqs; ++i) {
    const std::string index = "[" + std::to_string(i) + "]";
    const int64_t begin = p.query_start_loc[i];
    const int64_t end = p.query_start_loc[i + 1];
    const int64_t length = p.seq_lens[i];
    if (end < begin || end > num_tokens) {
      fail("query_start_loc[" + std::to_string(i + 1) + "]: must be in [" + std::to_string(begin) +
           ", " + std::to_string(num_tokens) + "], got " + std::to_string(end));
    }
    if (length < end - begin || length > table_width * p.block_size) {
      fail("seq_lens" + index + ": must be in [" + std::to_string(end - begin) + ", " +
           std::to_string(table_width * p.block_size) + "], got " + std::to_string(length));
    }
    if (end == begin) continue;
    const int64_t first_position = length - (end - begin);
    const int64_t first_key =
        first_position + 1 > p.sliding_window ? first_position + 1 - p.sliding_window : 0;
    const int32_t* table = p.block_tables + i * p.block_table_stride;
    bool ok = true;
    for (int64_t b = first_key / p.block_size; b <= (length - 1) / p.block_size; ++b) {
      ok &= static_cast<uint32_t>(table[b]) < static_cast<uint64_t>(num_blocks);
    }
    if (ok) continue;
    for (int64_t b = first_key / p.block_size; b <= (length - 1) / p.block_size; ++b) {
      check_range("block_tables" + index + "[" + std::to_string(b) + "]", table[b], 0, num_blocks);
    }
  }
}

// The size of the rows of values that a plan is made for: of quantised caches that of the keys,
// whose own rows are longer.
int64_t value_size_of(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache) {
  const bool is_plain = key_cache.dtype == query.dtype && value_cache.ndim == 4;
  return is_plain ? value_cache.shape[3] : query.shape[2];
}

// The parameters that a plan and a call share.
PagedAttentionParams layout(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
                            int64_t value_size, const Tensor& seq_lens,
                            const Tensor& query_start_loc) {
  PagedAttentionParams p{};
  p.query = {query.data, query.stride[0], query.stride[1]};
  p.key_cache = {key_cache.data, key_cache.stride[0], key_cache.stride[1], key_cache.stride[2]};
  p.value_cache = {value_cache.data, value_cache.stride[0], value_cache.stride[1],
                   value_cache.stride[2]};
  p.seq_lens = static_cast<const int32_t*>(seq_lens.data);
  p.query_start_loc = static_cast<const int32_t*>(query_start_loc.data);
  p.num_tokens = query.shape[0];
  p.num_seqs = seq_lens.shape[0];
  p.num_heads = query.shape[1];
  p.num_kv_heads = key_cache.shape[1];
  p.head_size = query.shape[2];
  p.value_size = value_size;
  p.block_size = key_cache.shape[2];
  p.dtype = query.dtype;
  p.cache_dtype = key_cache.dtype;
  return p;
}

void check_of_heads(const char* name, const std::optional<Tensor>& tensor, const Tensor& query) {
  if (!tensor) return;
  check_shape(name, *tensor, {query.shape[1]}, "[H]");
  check_dtype(name, *tensor, DType::kFloat32);
  check_contiguous(name, *tensor);
  check_device(name, *tensor, query.device);
}

void check_window(std::optional<int64_t> sliding_window) {
  if (sliding_window && *sliding_window < 1)
    fail("sliding_window: must be at least 1, got " + std::to_string(*sliding_window));
}

// The block tables of a plan, in host memory.
void set_tables(PagedAttentionParams& p, const std::optional<Tensor>& block_tables,
                const std::optional<Tensor>& table_rows) {
  if (block_tables.has_value() != table_rows.has_value())
    fail("table_rows: must be given with block_tables, and neither without the other");
  if (!block_tables) return;
  check_shape("block_tables", *block_tables, {-1, -1}, "[R, MB]");
  check_dtype("block_tables", *block_tables, DType::kInt32);
  check_unit_stride("block_tables", *block_tables);
  check_device("block_tables", *block_tables, Device::kCpu);
  check_shape("table_rows", *table_rows, {p.num_seqs}, "[N]");
  check_dtype("table_rows", *table_rows, DType::kInt64);
  check_contiguous("table_rows", *table_rows);
  check_device("table_rows", *table_rows, Device::kCpu);
  p.block_tables = static_cast<const int32_t*>(block_tables->data);
  p.block_table_stride = block_tables->stride[0];
  p.table_rows = static_cast<const int64_t*>(table_rows->data);
  for (int64_t i = 0; i < p.num_seqs; ++i) {
    check_range("table_rows[" + std::to_string(i) + "]", p.table_rows[i], 0,
                block_tables->shape[0]);
  }
}

}  // namespace

std::shared_ptr<AttentionPlan> plan_attention(
    Backend& backend, const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
    const Tensor& seq_lens, const Tensor& query_start_loc,
    const std::optional<Tensor>& block_tables, const std::optional<Tensor>& table_rows,
    std::optional<int64_t> sliding_window, std::optional<int64_t> max_seq_len,
    int64_t max_query_len, std::shared_ptr<AttentionPlan> earlier) {
  check_shape("query", query, {-1, -1, -1}, "[T, H, D]");
  check_activation_dtype("query", query);
  const int64_t value_size = value_size_of(query, key_cache, value_cache);
  check_caches(backend, "query", query, -1, key_cache, value_cache, value_size);
  check_sizes(query, key_cache, "value_cache", value_size);
  check_shape("seq_lens", seq_lens, {-1}, "[N]");
  check_shape("query_start_loc", query_start_loc, {seq_lens.shape[0] + 1}, "[N + 1]");
  for (const auto& [name, tensor] : {std::pair<const char*, const Tensor&>{"seq_lens", seq_lens},
                                     {"query_start_loc", query_start_loc}}) {
    check_dtype(name, tensor, DType::kInt32);
    check_contiguous(name, tensor);
    check_device(name, tensor, Device::kCpu);
  }
  check_window(sliding_window);
  PagedAttentionParams p =
      layout(query, key_cache, value_cache, value_size, seq_lens, query_start_loc);
  p.sliding_window = sliding_window.value_or(std::numeric_limits<int64_t>::max());
  set_tables(p, block_tables, table_rows);
  for (int64_t i = 0; i < p.num_seqs; ++i) {
    const int64_t rows = p.query_start_loc[i + 1] - p.query_start_loc[i];
    check_range("query_start_loc[" + std::to_string(i + 1) + "]", p.query_start_loc[i + 1],
                p.query_start_loc[i], p.num_tokens + 1);
    const int64_t longest = block_tables ? block_tables->shape[1] * p.block_size + 1 : INT32_MAX;
    check_range("seq_lens[" + std::to_string(i) + "]", p.seq_lens[i], rows, longest);
  }
  if (max_seq_len && *max_seq_len < 1)
    fail("max_seq_len: must be at least 1, got " + std::to_string(*max_seq_len));
  if (max_query_len < 1)
    fail("max_query_len: must be at least 1, got " + std::to_string(max_query_len));
  p.max_query_len = max_query_len;
  return backend.plan_attention(p, max_seq_len.value_or(0), std::move(earlier));
}

void paged_attention(Backend& backend, const Tensor& out, const Tensor& query,
                     const Tensor& key_cache, const Tensor& value_cache, const Tensor& block_tables,
                     const Tensor& seq_lens, const Tensor& query_start_loc, double scale,
                     const std::optional<Tensor>& alibi_slopes,
                     std::optional<int64_t> sliding_window, std::optional<double> soft_cap,
                     const std::optional<Tensor>& sinks, const std::optional<Tensor>& k_scale,
                     const std::optional<Tensor>& v_scale, const AttentionPlan* plan) {
  check_tensors(backend, out, query, key_cache, value_cache, block_tables, seq_lens,
                query_start_loc);
  check_sizes(query, key_cache, "out", out.shape[2]);
  if (!std::isfinite(scale)) fail("scale: must be finite, got " + std::to_string(scale));
  check_of_heads("alibi_slopes", alibi_slopes, query);
  check_of_heads("sinks", sinks, query);
  check_window(sliding_window);
  if (soft_cap && !(*soft_cap > 0 && std::isfinite(*soft_cap))) {
    fail("soft_cap: must be positive and finite, got " + std::to_string(*soft_cap));
  }

  PagedAttentionParams p =
      layout(query, key_cache, value_cache, out.shape[2], seq_lens, query_start_loc);
  p.out = {out.data, out.stride[0], out.stride[1]};
  p.block_tables = static_cast<const int32_t*>(block_tables.data);
  p.alibi_slopes = alibi_slopes ? static_cast<const float*>(alibi_slopes->data) : nullptr;
  p.sinks = sinks ? static_cast<const float*>(sinks->data) : nullptr;
  p.key_scales = check_head_scales("k_scale", k_scale, key_cache);
  p.value_scales = check_head_scales("v_scale", v_scale, value_cache);
  p.block_table_stride = block_tables.stride[0];
  p.sliding_window = sliding_window.value_or(std::numeric_limits<int64_t>::max());
  p.scale = static_cast<float>(scale);
  p.soft_cap = static_cast<float>(soft_cap.value_or(0.0));
  p.plan = plan;
  // Values on a GPU cannot be read without waiting for it.
  if (query.device == Device::kCpu)
    check_sequences(p, query.shape[0], block_tables.shape[1], key_cache.shape[0]);
  backend.paged_attention(p);
}

}  // namespace quire::ops

#endif
