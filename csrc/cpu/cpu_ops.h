// The operations that are the same code on every instruction set of a CPU.
#pragma once

#include "cpu/kernel_table.h"

namespace quire::cpu {

// `kernels` are those of the instruction set in use.
#define QUIRE_OP(name, Params, ...)                                                 \
  QUIRE_MUST_BE_DEFINED void name(const Params& params, const KernelTable& kernels, \
                                  ThreadPool& pool);
#define QUIRE_ISA_OP(name, Params, ...)
#include "ops.def"

}  // namespace quire::cpu
