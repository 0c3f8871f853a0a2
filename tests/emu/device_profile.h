// Which device the emulator plays: what kernels and their plans ask a device for.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace emu {

struct DeviceProfile {
  const char* name;
  int capability_major;
  int capability_minor;
  int num_multiprocessors;
  int shared_bytes_of_block;           // that a kernel may ask for
  int shared_bytes_of_multiprocessor;  // of which a block takes 1 KB beside what it asks for
  int threads_of_multiprocessor;
  int blocks_of_any;  // that a multiprocessor runs, however small

  int blocks_of_multiprocessor(int threads, size_t shared_bytes) const {
    const int by_memory =
        shared_bytes_of_multiprocessor / (static_cast<int>(shared_bytes) + (1 << 10));
    // A compiler's choice that is not known here: as many as small heads of attention take, which
    // are the only ones that shared memory lets run so often.
    constexpr int kRegistersOfThread = 132;
    const int by_registers = (64 << 10) / (kRegistersOfThread * threads);
    return std::min({by_memory, by_registers, threads_of_multiprocessor / threads, blocks_of_any});
  }
};

// From the tables of the CUDA C++ Programming Guide (Compute Capabilities) and the data sheets. The
// first is an H100 with so few multiprocessors that tests see work both split and not.
constexpr DeviceProfile kDeviceProfiles[] = {
    {"small", 9, 0, 4, 227 << 10, 228 << 10, 2048, 32},
    {"A100", 8, 0, 108, 163 << 10, 164 << 10, 2048, 32},
    {"L4", 8, 9, 58, 99 << 10, 100 << 10, 1536, 24},
    {"4090", 8, 9, 128, 99 << 10, 100 << 10, 1536, 24},
    {"H100", 9, 0, 132, 227 << 10, 228 << 10, 2048, 32},
    {"B200", 10, 0, 148, 227 << 10, 228 << 10, 2048, 32},
};

// The profile that QUIRE_EMULATED_DEVICE names when it is first asked for, or the first.
inline const DeviceProfile& device() {
  static const DeviceProfile& chosen = []() -> const DeviceProfile& {
    const char* name = std::getenv("QUIRE_EMULATED_DEVICE");
    if (name == nullptr) return kDeviceProfiles[0];
    for (const DeviceProfile& each : kDeviceProfiles) {
      if (name == std::string(each.name)) return each;
    }
    throw std::invalid_argument(std::string("QUIRE_EMULATED_DEVICE: must be a known device, got ") +
                                name);
  }();
  return chosen;
}

}  // namespace emu
