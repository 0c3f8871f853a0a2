// Another machine that may run kernels in the place of this one's fibers: the interpreter of PTX.
#pragma once

#include <cstddef>

#include "machine.h"

namespace emu {

class OtherMachine {
 public:
  virtual ~OtherMachine() = default;

  // Runs a kernel, a function of this process, whose arguments lie where `arguments` says.
  virtual void launch(const void* kernel, const void* const* arguments, dim3 grid, dim3 block,
                      size_t shared_bytes) = 0;

  // Whether its kernels are compiled for products of warpgroups (csrc/cuda/warpgroup.h).
  virtual bool has_warpgroups() = 0;

  // The host has allocated memory of the device, or its own that kernels may touch, which is
  // pinned; has freed it, and written to it.
  virtual void allocated(void* begin, size_t bytes, bool is_pinned) = 0;
  virtual void freed(void* begin) = 0;
  virtual void written(const void* begin, size_t bytes) = 0;
};

// Null: kernels run here.
inline OtherMachine* other_machine = nullptr;

template <typename... Params>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
            const Params&... values) {
  if (other_machine == nullptr) {
    Machine::launch(grid, block, shared_bytes, [&] { kernel(values...); });
    return;
  }
  const void* const arguments[] = {&values..., nullptr};
  other_machine->launch(reinterpret_cast<const void*>(kernel), arguments, grid, block,
                        shared_bytes);
}

}  // namespace emu
