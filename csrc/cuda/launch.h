// The one way to start a kernel.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>

#include "cuda/device.h"

namespace quire::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(error));
}

// The blocks of a grid. Throws std::invalid_argument if there are more than a grid can have.
inline unsigned grid_size(int64_t blocks) {
  if (blocks > 0x7fffffff) {
    throw std::invalid_argument("CUDA: " + std::to_string(blocks) + " blocks do not fit a grid");
  }
  return static_cast<unsigned>(blocks);
}

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&value, attribute, device), "device");
  return value;
}

inline int num_multiprocessors() {
  static const int count = device_attribute(cudaDevAttrMultiProcessorCount);
  return count;
}

// Two blocks for each multiprocessor: a launch with fewer leaves part of the device idle.
inline int num_blocks_at_once() {
  return 2 * num_multiprocessors();
}

// Whether this build has code for the device's products of warpgroups.
inline bool has_warpgroups() {
#if defined(__CUDACC__) && !defined(QUIRE_SM90A)
  return false;
#else
  static const bool has = device_attribute(cudaDevAttrComputeCapabilityMajor) == 9;
#if !defined(__CUDACC__)
  if (emu::other_machine != nullptr && !emu::other_machine->has_warpgroups()) return false;
#endif
  return has;
#endif
}

// Lets a kernel ask for so much dynamic shared memory. 48 KB are there without asking, of which a
// kernel may have up to 16 itself.
template <typename... Params>
void allow_shared(void (*kernel)(Params...), size_t shared_bytes) {
  constexpr size_t kSharedWithoutAsking = 32 << 10;
  if (shared_bytes <= kSharedWithoutAsking) return;
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes)),
        "shared memory");
}

// The blocks of a kernel that a multiprocessor runs at once; 0 if the device has too little shared
// memory for one.
template <typename... Params>
int blocks_of_multiprocessor(void (*kernel)(Params...), int threads, size_t shared_bytes) {
  static const auto limit =
      static_cast<size_t>(device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  if (shared_bytes > limit) return 0;
  allow_shared(kernel, shared_bytes);
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes),
        "occupancy");
  return blocks;
}

#if defined(__CUDACC__)
// Whether kernels start while the one before them in the stream still runs: what is left of a
// launch's latency is hidden behind it. All of them call begin_kernel. QUIRE_LAUNCH_OVERLAP=0 has
// them start one after the other.
inline bool launches_overlap() {
  static const bool they_do = [] {
    const char* asked = std::getenv("QUIRE_LAUNCH_OVERLAP");
    const bool is_refused = asked != nullptr && std::string_view(asked) == "0";
    return !is_refused && device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
  }();
  return they_do;
}
#endif

// Starts `kernel` on a stream. An empty grid starts nothing.
//
// Throws std::runtime_error if the device refuses.
template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, const Args&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  allow_shared(kernel, shared_bytes);
#if defined(__CUDACC__)
  std::tuple<Params...> values(args...);
  std::apply(
      [&](Params&... value) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&value))...};
        cudaLaunchAttribute overlap{};
        overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        overlap.val.programmaticStreamSerializationAllowed = 1;
        const cudaLaunchConfig_t config{grid,   block,    shared_bytes,
                                        stream, &overlap, launches_overlap() ? 1u : 0u};
        check(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers),
              "launch");
      },
      values);
#else
  static_cast<void>(stream);
  const std::tuple<Params...> values(args...);
  std::apply(
      [&](const Params&... value) { emu::launch(kernel, grid, block, shared_bytes, value...); },
      values);
#endif
}

}  // namespace quire::cuda
