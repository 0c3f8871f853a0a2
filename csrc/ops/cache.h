// Operations on cached keys and values: what their kernels are given, and the checks of their
// arguments.
#pragma once

#include "core/params.h"

namespace quire {

// reshape_and_cache and its inverse, gather_cached_kv.
struct CacheIoParams {
  RowsView key;    // [T, Hkv, D]
  RowsView value;  // [T, Hkv, D]; null if there are only keys
  CacheView key_cache;
  CacheView value_cache;        // null as `value` is
  const int64_t* slot_mapping;  // [T], block * block_size + offset; negative rows are padding
  int64_t num_tokens;
  int64_t num_kv_heads;
  int64_t head_size;
  int64_t block_size;
  const float* key_scales;    // [Hkv], of float8 caches; null where all are 1
  const float* value_scales;  // [Hkv]
  DType dtype;
  DType cache_dtype;  // the same, or a quantised one
};

struct CopyBlocksParams {
  char* const* caches;           // [num_caches], key and value caches of every layer
  const int64_t* block_bytes;    // [num_caches], bytes of one block; blocks lie back to back
  const int64_t* block_mapping;  // [P, 2] (source, destination), applied in order
  int64_t num_caches;
  int64_t num_pairs;
};

struct SwapBlocksParams {
  const char* src;
  char* dst;
  int64_t block_bytes;
  const int64_t* block_mapping;  // [P, 2] (source block, destination block)
  int64_t num_pairs;
};

}  // namespace quire

#if defined(QUIRE_COMPILE_CHECKS)
#include <cmath>
#include <string>

#include "core/check.h"
#include "ops/ops.h"

namespace quire::ops {
namespace {

// One block's bytes lie together, in [Hkv, BS, D] or [BS, Hkv, D] order, and blocks lie back to
// back.
void check_dense_blocks(const char* name, const Tensor& cache) {
  const int64_t heads = cache.shape[1];
  const int64_t block_size = cache.shape[2];
  const int64_t head_size = cache.shape[3];
  const bool head_first = cache.stride[1] == block_size * head_size && cache.stride[2] == head_size;
  const bool token_first = cache.stride[1] == head_size && cache.stride[2] == heads * head_size;
  if (cache.stride[3] == 1 && (head_first || token_first) &&
      cache.stride[0] == heads * block_size * head_size)
    return;
  fail(std::string(name) + ": must have dense blocks, got strides " +
       std::to_string(cache.stride[0]) + ", " + std::to_string(cache.stride[1]) + ", " +
       std::to_string(cache.stride[2]) + ", " + std::to_string(cache.stride[3]));
}

void check_block_mapping(const Tensor& mapping, int64_t src_blocks, int64_t dst_blocks) {
  check_shape("block_mapping", mapping, {-1, 2}, "[P, 2]");
  check_dtype("block_mapping", mapping, DType::kInt64);
  check_contiguous("block_mapping", mapping);
  check_device("block_mapping", mapping, Device::kCpu);
  const auto* pairs = static_cast<const int64_t*>(mapping.data);
  for (int64_t i = 0; i < mapping.shape[0]; ++i) {
    const bool ok = pairs[2 * i] >= 0 && pairs[2 * i] < src_blocks && pairs[2 * i + 1] >= 0 &&
                    pairs[2 * i + 1] < dst_blocks;
    if (ok) continue;
    const std::string row = "block_mapping[" + std::to_string(i) + "]";
    check_range(row + " source", pairs[2 * i], 0, src_blocks);
    check_range(row + " destination", pairs[2 * i + 1], 0, dst_blocks);
  }
}

// Checks that a cache of keys holds heads of the size and number of `rows` [T, Hkv, D], in the type
// of `rows` or in the one that the backend offers instead. `name` is that of `rows`; with
// `num_heads` -1 any number of heads will do.
void check_key_cache(const Backend& backend, const char* name, const Tensor& rows,
                     int64_t num_heads, const Tensor& key_cache) {
  const int64_t head_size = rows.shape[2];
  const DType quantised = backend.quantised_cache_dtype();
  if (key_cache.dtype != rows.dtype && key_cache.dtype != quantised) {
    fail(std::string("key_cache: must be ") + dtype_name(rows.dtype) + " as " + name + " is, or " +
         dtype_name(quantised) + ", got " + dtype_name(key_cache.dtype));
  }
  const bool has_scales = key_cache.dtype == DType::kInt8;
  check_shape("key_cache", key_cache,
              {-1, num_heads, -1, head_size + (has_scales ? kRowScaleBytes : 0)},
              has_scales ? "[B, Hkv, BS, D + 4]" : "[B, Hkv, BS, D]");
  check_unit_stride("key_cache", key_cache);
  check_device("key_cache", key_cache, rows.device);
  if (key_cache.dtype != rows.dtype && head_size > kMaxQuantisedHeadSize) {
    fail(std::string(name) + ": head size must be at most " +
         std::to_string(kMaxQuantisedHeadSize) + " for quantised caches, got " +
         std::to_string(head_size));
  }
}

// The same of keys, and of values that are `value_size` long, as long as keys in quantised caches.
void check_caches(const Backend& backend, const char* name, const Tensor& rows, int64_t num_heads,
                  const Tensor& key_cache, const Tensor& value_cache, int64_t value_size) {
  check_key_cache(backend, name, rows, num_heads, key_cache);
  check_dtype("value_cache", value_cache, key_cache.dtype);
  const bool is_quantised = key_cache.dtype != rows.dtype;
  if (is_quantised && value_size != rows.shape[2]) {
    fail("out: must have " + std::to_string(rows.shape[2]) + " elements a head, as " + name +
         " has, over quantised caches, got " + std::to_string(value_size));
  }
  check_shape("value_cache", value_cache,
              {key_cache.shape[0], key_cache.shape[1], key_cache.shape[2],
               is_quantised ? key_cache.shape[3] : value_size},
              is_quantised ? "[B, Hkv, BS, D], as key_cache" : "[B, Hkv, BS, Dv]");
  check_unit_stride("value_cache", value_cache);
  check_device("value_cache", value_cache, rows.device);
}

// Returns the scales [Hkv] of a float8 cache, null without; other caches have none. Values in host
// memory must be positive and finite.
const float* check_head_scales(const char* name, const std::optional<Tensor>& scales,
                               const Tensor& cache) {
  if (!scales) return nullptr;
  if (cache.dtype != DType::kFloat8E4M3) {
    fail(std::string(name) + ": must be None unless caches are float8_e4m3fn, got caches of " +
         dtype_name(cache.dtype));
  }
  check_shape(name, *scales, {cache.shape[1]}, "[Hkv]");
  check_dtype(name, *scales, DType::kFloat32);
  check_contiguous(name, *scales);
  check_device(name, *scales, cache.device);
  const auto* values = static_cast<const float*>(scales->data);
  // Values on a GPU cannot be read without waiting for it.
  const int64_t num_checked = cache.device == Device::kCpu ? scales->shape[0] : 0;
  for (int64_t i = 0; i < num_checked; ++i) {
    if (values[i] > 0 && std::isfinite(values[i])) continue;
    fail(std::string(name) + "[" + std::to_string(i) + "]: must be positive and finite, got " +
         std::to_string(values[i]));
  }
  return values;
}

// For the first rows, as many as there are slots; of keys alone.
CacheIoParams check_key_io(const Backend& backend, const Tensor& key, const Tensor& key_cache,
                           const Tensor& slot_mapping, const std::optional<Tensor>& k_scale) {
  check_shape("key", key, {-1, -1, -1}, "[T, Hkv, D]");
  check_shape("slot_mapping", slot_mapping, {-1}, "[T]");
  check_activation_dtype("key", key);
  check_dtype("slot_mapping", slot_mapping, DType::kInt64);
  check_unit_stride("key", key);
  check_contiguous("slot_mapping", slot_mapping);
  check_device("slot_mapping", slot_mapping, key.device);
  check_key_cache(backend, "key", key, key.shape[1], key_cache);

  const int64_t capacity = key_cache.shape[0] * key_cache.shape[2];
  const auto* slots = static_cast<const int64_t*>(slot_mapping.data);
  // Values on a GPU cannot be read without waiting for it.
  const int64_t num_checked = key.device == Device::kCpu ? slot_mapping.shape[0] : 0;
  for (int64_t i = 0; i < num_checked; ++i) {
    if (slots[i] < capacity) continue;
    fail("slot_mapping[" + std::to_string(i) + "]: must be below the cache's " +
         std::to_string(capacity) + " slots, got " + std::to_string(slots[i]));
  }

  CacheIoParams p{};
  p.key = {key.data, key.stride[0], key.stride[1]};
  p.key_cache = {key_cache.data, key_cache.stride[0], key_cache.stride[1], key_cache.stride[2]};
  p.slot_mapping = slots;
  p.num_tokens = slot_mapping.shape[0];
  p.num_kv_heads = key.shape[1];
  p.head_size = key.shape[2];
  p.block_size = key_cache.shape[2];
  p.key_scales = check_head_scales("k_scale", k_scale, key_cache);
  p.dtype = key.dtype;
  p.cache_dtype = key_cache.dtype;
  return p;
}

// The same of keys and values.
CacheIoParams check_cache_io(const Backend& backend, const Tensor& key, const Tensor& value,
                             const Tensor& key_cache, const Tensor& value_cache,
                             const Tensor& slot_mapping, const std::optional<Tensor>& k_scale,
                             const std::optional<Tensor>& v_scale) {
  CacheIoParams p = check_key_io(backend, key, key_cache, slot_mapping, k_scale);
  check_shape("value", value, {key.shape[0], key.shape[1], key.shape[2]}, "[T, Hkv, D]");
  check_dtype("value", value, key.dtype);
  check_unit_stride("value", value);
  check_device("value", value, key.device);
  check_caches(backend, "key", key, key.shape[1], key_cache, value_cache, value.shape[2]);
  p.value = {value.data, value.stride[0], value.stride[1]};
  p.value_cache = {value_cache.data, value_cache.stride[0], value_cache.stride[1],
                   value_cache.stride[2]};
  p.value_scales = check_head_scales("v_scale", v_scale, value_cache);
  return p;
}

void check_every_row_has_a_slot(const Tensor& key, const Tensor& slot_mapping) {
  check_shape("key", key, {-1, -1, -1}, "[T, Hkv, D]");
  check_shape("slot_mapping", slot_mapping, {key.shape[0]}, "[T]");
}

}  // namespace

void reshape_and_cache(Backend& backend, const Tensor& key, const std::optional<Tensor>& value,
                       const Tensor& key_cache, const std::optional<Tensor>& value_cache,
                       const Tensor& slot_mapping, const std::optional<Tensor>& k_scale,
                       const std::optional<Tensor>& v_scale) {
  check_every_row_has_a_slot(key, slot_mapping);
  if (value.has_value() != value_cache.has_value())
    fail("value_cache: must be given with value, and neither without the other");
  if (!value && v_scale) fail("v_scale: must be None without values");
  backend.reshape_and_cache(value ? check_cache_io(backend, key, *value, key_cache, *value_cache,
                                                   slot_mapping, k_scale, v_scale)
                                  : check_key_io(backend, key, key_cache, slot_mapping, k_scale));
}

void gather_cached_kv(Backend& backend, const Tensor& key_out, const Tensor& value_out,
                      const Tensor& key_cache, const Tensor& value_cache,
                      const Tensor& slot_mapping, const std::optional<Tensor>& k_scale,
                      const std::optional<Tensor>& v_scale) {
  check_every_row_has_a_slot(key_out, slot_mapping);
  backend.gather_cached_kv(check_cache_io(backend, key_out, value_out, key_cache, value_cache,
                                          slot_mapping, k_scale, v_scale));
}

void copy_blocks(Backend& backend, const std::vector<Tensor>& key_caches,
                 const std::vector<Tensor>& value_caches, const Tensor& block_mapping) {
  if (!value_caches.empty() && key_caches.size() != value_caches.size()) {
    fail("value_caches: must be none, or as many as key_caches (" +
         std::to_string(key_caches.size()) + "), got " + std::to_string(value_caches.size()));
  }
  std::vector<char*> caches;
  std::vector<int64_t> block_bytes;
  int64_t num_blocks = 0;
  const auto add = [&](const char* name, const Tensor& cache) {
    check_shape(name, cache, {caches.empty() ? -1 : num_blocks, -1, -1, -1}, "[B, Hkv, BS, D]");
    check_dense_blocks(name, cache);
    check_device(name, cache, key_caches.front().device);
    num_blocks = cache.shape[0];
    caches.push_back(static_cast<char*>(cache.data));
    block_bytes.push_back(cache.stride[0] * element_size(cache.dtype));
  };
  for (const Tensor& cache : key_caches) add("key_caches", cache);
  for (const Tensor& cache : value_caches) add("value_caches", cache);
  check_block_mapping(block_mapping, num_blocks, num_blocks);
  backend.copy_blocks({caches.data(), block_bytes.data(),
                       static_cast<const int64_t*>(block_mapping.data),
                       static_cast<int64_t>(caches.size()), block_mapping.shape[0]});
}

void swap_blocks(Backend& backend, const Tensor& src_cache, const Tensor& dst_cache,
                 const Tensor& block_mapping) {
  check_shape("src_cache", src_cache, {-1, -1, -1, -1}, "[B, Hkv, BS, D]");
  check_shape("dst_cache", dst_cache,
              {-1, src_cache.shape[1], src_cache.shape[2], src_cache.shape[3]}, "[B, Hkv, BS, D]");
  check_dtype("dst_cache", dst_cache, src_cache.dtype);
  check_dense_blocks("src_cache", src_cache);
  check_dense_blocks("dst_cache", dst_cache);
  if (src_cache.stride[1] != dst_cache.stride[1] || src_cache.stride[2] != dst_cache.stride[2]) {
    fail("dst_cache: must have the layout of src_cache");
  }
  check_block_mapping(block_mapping, src_cache.shape[0], dst_cache.shape[0]);
  backend.swap_blocks({static_cast<const char*>(src_cache.data), static_cast<char*>(dst_cache.data),
                       src_cache.stride[0] * element_size(src_cache.dtype),
                       static_cast<const int64_t*>(block_mapping.data), block_mapping.shape[0]});
}

}  // namespace quire::ops

#endif
