// What a worker asks the CUDA runtime for beside kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace quire::cuda {

// Why the driver cannot run these kernels: it is older than the compiler. "" if it can.
std::string driver_problem();

// What a device answers to the simplest kernel. "" if it runs it.
std::string launch_problem(int device);

// Pins host memory, which the device then reads and writes without the CPU. Returns the error, or
// "".
std::string pin_host_memory(uintptr_t address, size_t bytes);
void unpin_host_memory(uintptr_t address);

}  // namespace quire::cuda
