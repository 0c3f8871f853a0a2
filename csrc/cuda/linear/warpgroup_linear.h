// Linear layers on products of warpgroups, which an H100 has.
#pragma once

#include "cuda/linear/split_memory.h"
#include "ops/linear.h"

namespace quire::cuda {

// Starts a layer, and returns whether it did: not where the device has no such products, and not
// where single warps are as good, since few rows wait for memory.
bool run_warpgroups(const LinearParams& p, const SplitResults& results, cudaStream_t stream);

// The same of weights of 8 or 4 bits.
bool run_warpgroups(const WeightOnlyLinearParams& p, const SplitResults& results,
                    cudaStream_t stream);

}  // namespace quire::cuda
