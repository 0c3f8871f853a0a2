// The one way to start a kernel.
#pragma once

#include <stdexcept>
#include <string>
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

// Two blocks for each multiprocessor: a launch with fewer leaves part of the device idle.
inline int num_blocks_at_once() {
  static const int count = [] {
    int device = 0;
    int multiprocessors = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
          "device");
    return 2 * multiprocessors;
  }();
  return count;
}

// Starts `kernel` on a stream. An empty grid starts nothing.
//
// Throws std::runtime_error if the device refuses.
template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, const Args&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#if defined(__CUDACC__)
  constexpr size_t kSharedWithoutAsking = 48 << 10;
  if (shared_bytes > kSharedWithoutAsking) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "shared memory");
  }
  std::tuple<Params...> values(args...);
  std::apply(
      [&](Params&... value) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&value))...};
        check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers,
                               shared_bytes, stream),
              "launch");
      },
      values);
#else
  static_cast<void>(stream);
  const std::tuple<Params...> values(args...);
  emu::Machine::launch(grid, block, shared_bytes, [&] { std::apply(kernel, values); });
#endif
}

}  // namespace quire::cuda
