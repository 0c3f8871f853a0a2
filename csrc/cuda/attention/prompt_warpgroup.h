// Attention of prompts, and of what sequences share, on products of warpgroups, which an H100 has.
#pragma once

#include "cuda/attention/device_plan.h"
#include "ops/attention.h"

namespace quire::cuda {

// Starts the blocks of a plan, without the merge behind them, and returns whether it did: not where
// the device has no such products, nor for blocks of another number of columns.
// `attention_prompt_serves` must have returned true.
bool run_prompt_warpgroups(const PagedAttentionParams& p, const DeviceWork& work,
                           cudaStream_t stream);

// The same of what sequences share, for blocks of `columns` columns.
bool run_shared_warpgroups(const PagedAttentionParams& p, const SharedWork& work, int columns,
                           cudaStream_t stream);

}  // namespace quire::cuda
