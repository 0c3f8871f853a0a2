// Checks that the operations on caches of keys and values have in common.
#pragma once

#include <optional>

#include "core/backend.h"
#include "core/tensor.h"

namespace quire::ops {

// That the caches hold heads of the size and number of `rows` [T, Hkv, D], in its type or one that
// the backend serves instead. `name` is that of `rows`; any number of heads where `num_heads` is
// -1.
void check_caches(const Backend& backend, const char* name, const Tensor& rows, int64_t num_heads,
                  const Tensor& key_cache, const Tensor& value_cache);

// Scales [Hkv] of float8 caches, null without; refused for other caches. Values that are not on a
// GPU must be positive and finite.
const float* check_head_scales(const char* name, const std::optional<Tensor>& scales,
                               const Tensor& cache);

// Of the first rows, as many as there are slots.
CacheIoParams check_cache_io(const Backend& backend, const Tensor& key, const Tensor& value,
                             const Tensor& key_cache, const Tensor& value_cache,
                             const Tensor& slot_mapping, const std::optional<Tensor>& k_scale,
                             const std::optional<Tensor>& v_scale);

}  // namespace quire::ops
