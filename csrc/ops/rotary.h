// Rotary embedding, alone and on the way into the cache: what its kernels are given, and the checks
// of its arguments.
#pragma once

#include "core/params.h"
#include "ops/cache.h"

namespace quire {

struct RotaryParams {
  RowsView query;  // [T, H, D]
  RowsView key;    // [T, Hkv, D]
  const int64_t* positions;
  const float* cos_sin_cache;  // [P, rotary_dim]: cosines, then sines
  int64_t cos_sin_stride;
  int64_t num_tokens;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t rotary_dim;
  bool is_neox;
  DType dtype;
};

// The rotated keys are written to the cache only: `rotary.key`, which `cache.key` equals, does not
// change. Rows from cache.num_tokens on have no slot.
struct RotaryCacheParams {
  RotaryParams rotary;
  CacheIoParams cache;
};

}  // namespace quire

#if defined(QUIRE_COMPILE_CHECKS)
#include <string>

#include "core/check.h"
#include "ops/ops.h"

namespace quire::ops {
namespace {

RotaryParams check_rotary(const Tensor& positions, const Tensor& query, const Tensor& key,
                          const Tensor& cos_sin_cache, bool is_neox) {
  check_shape("query", query, {-1, -1, -1}, "[T, H, D]");
  check_shape("key", key, {query.shape[0], -1, query.shape[2]}, "[T, Hkv, D]");
  check_shape("positions", positions, {query.shape[0]}, "[T]");
  check_shape("cos_sin_cache", cos_sin_cache, {-1, -1}, "[P, R]");
  check_activation_dtype("query", query);
  check_dtype("key", key, query.dtype);
  check_dtype("positions", positions, DType::kInt64);
  check_dtype("cos_sin_cache", cos_sin_cache, DType::kFloat32);
  check_unit_stride("query", query);
  check_unit_stride("key", key);
  check_unit_stride("cos_sin_cache", cos_sin_cache);
  check_contiguous("positions", positions);
  check_device("key", key, query.device);
  check_device("positions", positions, query.device);
  check_device("cos_sin_cache", cos_sin_cache, query.device);
  const int64_t rotary_dim = cos_sin_cache.shape[1];
  if (rotary_dim % 2 != 0 || rotary_dim > query.shape[2]) {
    fail("cos_sin_cache: must have an even number of columns, at most the head size " +
         std::to_string(query.shape[2]) + ", got " + std::to_string(rotary_dim));
  }
  const auto* position = static_cast<const int64_t*>(positions.data);
  // Values on a GPU cannot be read without waiting for it.
  const int64_t num_checked = query.device == Device::kCpu ? positions.shape[0] : 0;
  for (int64_t i = 0; i < num_checked; ++i) {
    if (position[i] >= 0 && position[i] < cos_sin_cache.shape[0]) continue;
    check_range("positions[" + std::to_string(i) + "]", position[i], 0, cos_sin_cache.shape[0]);
  }

  RotaryParams p{};
  p.query = {query.data, query.stride[0], query.stride[1]};
  p.key = {key.data, key.stride[0], key.stride[1]};
  p.positions = position;
  p.cos_sin_cache = static_cast<const float*>(cos_sin_cache.data);
  p.cos_sin_stride = cos_sin_cache.stride[0];
  p.num_tokens = query.shape[0];
  p.num_heads = query.shape[1];
  p.num_kv_heads = key.shape[1];
  p.rotary_dim = rotary_dim;
  p.is_neox = is_neox;
  p.dtype = query.dtype;
  return p;
}

}  // namespace

void rotary_embedding(Backend& backend, const Tensor& positions, const Tensor& query,
                      const Tensor& key, const Tensor& cos_sin_cache, bool is_neox) {
  backend.rotary_embedding(check_rotary(positions, query, key, cos_sin_cache, is_neox));
}

void rotary_and_cache(Backend& backend, const Tensor& positions, const Tensor& query,
                      const Tensor& key, const Tensor& value, const Tensor& cos_sin_cache,
                      bool is_neox, const Tensor& key_cache, const Tensor& value_cache,
                      const Tensor& slot_mapping, const std::optional<Tensor>& k_scale,
                      const std::optional<Tensor>& v_scale) {
  const RotaryParams rotary = check_rotary(positions, query, key, cos_sin_cache, is_neox);
  check_shape("slot_mapping", slot_mapping, {-1}, "[S]");
  if (slot_mapping.shape[0] > key.shape[0]) {
    fail("slot_mapping: must have at most as many slots as key has rows (" +
         std::to_string(key.shape[0]) + "), got " + std::to_string(slot_mapping.shape[0]));
  }
  backend.rotary_and_cache({rotary, check_cache_io(backend, key, value, key_cache, value_cache,
                                                   slot_mapping, k_scale, v_scale)});
}

}  // namespace quire::ops

#endif
