// Linear layers have kernels on GPUs only.
#include "core/check.h"
#include "cpu/cpu_ops.h"

namespace quire::cpu {

void linear(const LinearParams&, const KernelTable&, ThreadPool&) {
  fail("linear: must be called with tensors on a GPU; on the CPU torch computes dense layers");
}

}  // namespace quire::cpu
