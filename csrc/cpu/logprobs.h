// Log-probabilities of chosen tokens and of the most probable ones.
#pragma once

#include "cpu/kernel_table.h"

namespace quire::cpu {

void top_logprobs(const TopLogprobsParams& params, const KernelTable& kernels, ThreadPool& pool);

}  // namespace quire::cpu
