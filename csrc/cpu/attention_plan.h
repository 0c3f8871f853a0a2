// Cuts a step's attention into work items. The cut is free: results do not depend on it
// (cpu/kernels/attention.h).
#pragma once

#include <vector>

#include "cpu/kernel_table.h"

namespace quire::cpu {

// Items in the order in which threads should take them: most work first.
std::vector<AttentionItem> plan_attention(const PagedAttentionParams& params, int num_threads);

}  // namespace quire::cpu
