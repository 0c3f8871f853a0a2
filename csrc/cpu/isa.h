// The instruction sets that were compiled in and that this machine can run, best first.
#pragma once

#include <string>
#include <vector>

#include "cpu/kernel_table.h"

namespace quire::cpu {

// Never empty: the portable kernels run everywhere.
const std::vector<const KernelTable*>& available_kernel_tables();

// Throws std::invalid_argument, naming the choices, when this machine cannot run `name`.
const KernelTable& find_kernel_table(const std::string& name);

}  // namespace quire::cpu
