// Draws one token per row of logits.
#pragma once

#include "cpu/kernel_table.h"

namespace quire::cpu {

void sample(const SampleParams& params, const KernelTable& kernels, ThreadPool& pool);

}  // namespace quire::cpu
