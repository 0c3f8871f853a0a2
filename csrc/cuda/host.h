// What a worker asks the CUDA runtime for beside kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace quire::cuda {

// Why a device cannot run these kernels: its driver is older than the compiler, or it refuses the
// simplest one. "" if it can.
std::string why_unusable(int device);

// Pins host memory, which the device then reads and writes without the CPU. Returns the error, or
// "".
std::string pin_host_memory(uintptr_t address, size_t bytes);
void unpin_host_memory(uintptr_t address);

}  // namespace quire::cuda
