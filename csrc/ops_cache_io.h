// Checks that the operations on slots of the cache have in common.
#pragma once

#include "params.h"

namespace quire::ops {

// Of the first rows, as many as there are slots.
CacheIoParams check_cache_io(const Tensor& key, const Tensor& value, const Tensor& key_cache,
                             const Tensor& value_cache, const Tensor& slot_mapping);

}  // namespace quire::ops
