// The operations as the bindings see them: tensors in, all checks made once, then a call of the
// backend with raw pointers.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/backend.h"
#include "core/tensor.h"

namespace quire::ops {

#define QUIRE_OP(name, Params, ...) QUIRE_MUST_BE_DEFINED void name(Backend& backend, __VA_ARGS__);
#include "ops.def"

// `seq_lens` and `query_start_loc` are in host memory. Returns null if the backend plans nothing in
// advance.
std::shared_ptr<AttentionPlan> plan_attention(
    Backend& backend, const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
    const Tensor& seq_lens, const Tensor& query_start_loc,
    const std::optional<Tensor>& block_tables, const std::optional<Tensor>& table_rows,
    std::optional<int64_t> sliding_window, std::optional<int64_t> max_seq_len,
    int64_t max_query_len, std::shared_ptr<AttentionPlan> earlier);

}  // namespace quire::ops
