// The part of CUDA's language and runtime that csrc/cuda uses, on the CPU: device memory is host
// memory, a stream does everything at once, and kernels run in the emulator.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "device_profile.h"
#include "machine.h"
#include "other_machine.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

#define threadIdx (::emu::Machine::current().thread_index())
#define blockIdx (::emu::Machine::current().block_index())
#define blockDim (::emu::Machine::current().block_size())
#define gridDim (::emu::Machine::current().grid_size())

// ---------------------------------------------------------------- runtime

using cudaStream_t = struct EmulatedStream*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0;
constexpr cudaError_t cudaErrorInvalidValue = 1;
constexpr cudaError_t cudaErrorMemoryAllocation = 2;
constexpr cudaError_t cudaErrorInvalidDevice = 101;
constexpr cudaError_t cudaErrorStreamCaptureUnsupported = 900;

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const emu::DeviceProfile& device = emu::device();
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = device.num_multiprocessors;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = device.shared_bytes_of_block;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = device.capability_major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = device.capability_minor;
      break;
  }
  return cudaSuccess;
}

inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int shared_bytes) {
  return shared_bytes <= emu::device().shared_bytes_of_block ? cudaSuccess : cudaErrorInvalidValue;
}

template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int threads,
                                                          size_t shared_bytes) {
  *blocks = emu::device().blocks_of_multiprocessor(threads, shared_bytes);
  return cudaSuccess;
}

#define CUDART_VERSION 13000

inline cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

inline cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    default:
      return "out of memory";
  }
}

#include "emulated_ipc.h"
#include "emulated_memory.h"

// ---------------------------------------------------------------- barriers and collectives

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emu::Machine::current().block_barrier(file, line);
}

inline void __syncwarp(uint32_t mask = emu::kFullMask) {
  emu::Machine::current().warp_barrier(mask, true);
}

template <typename T>
T __shfl_sync(uint32_t mask, T value, int source, int width = emu::kWarpSize) {
  auto& machine = emu::Machine::current();
  const int first = machine.lane() & ~(width - 1);
  return emu::shown<T>(machine.exchange(mask, value), first | (source & (width - 1)));
}

template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int flipped) {
  auto& machine = emu::Machine::current();
  return emu::shown<T>(machine.exchange(mask, value), machine.lane() ^ flipped);
}

template <typename T>
T __shfl_up_sync(uint32_t mask, T value, unsigned distance) {
  auto& machine = emu::Machine::current();
  const int source = machine.lane() - static_cast<int>(distance);
  const auto* slots = machine.exchange(mask, value);
  return source < 0 ? value : emu::shown<T>(slots, source);
}

inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
  const auto* slots = emu::Machine::current().exchange(mask, predicate);
  uint32_t votes = 0;
  for (int lane = 0; lane < emu::kWarpSize; ++lane) {
    const bool votes_yes = (mask >> lane & 1) != 0 && emu::shown<int>(slots, lane) != 0;
    votes |= static_cast<uint32_t>(votes_yes) << lane;
  }
  return votes;
}

// The lanes of the mask that have the same value.
inline uint32_t __match_any_sync(uint32_t mask, uint32_t value) {
  const auto* slots = emu::Machine::current().exchange(mask, value);
  uint32_t same = 0;
  for (int lane = 0; lane < emu::kWarpSize; ++lane) {
    const bool is_same = (mask >> lane & 1) != 0 && emu::shown<uint32_t>(slots, lane) == value;
    same |= static_cast<uint32_t>(is_same) << lane;
  }
  return same;
}

inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t value) {
  const auto* slots = emu::Machine::current().exchange(mask, value);
  uint32_t sum = 0;
  for (int lane = 0; lane < emu::kWarpSize; ++lane)
    if ((mask >> lane & 1) != 0) sum += emu::shown<uint32_t>(slots, lane);
  return sum;
}

inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}

inline int __any_sync(uint32_t mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}

// ---------------------------------------------------------------- memory

template <typename T>
T __ldg(const T* pointer) {
  return *pointer;
}

template <typename T>
T __ldcg(const T* pointer) {
  return *pointer;
}

// Blocks come one after the other, and what a thread has written all see at once.
inline void __threadfence() {}

// Threads take turns only where they wait, so a plain read and write is atomic.
template <typename T, typename U>
T atomicAdd(T* address, U value) {
  const T old = *address;
  *address = old + static_cast<T>(value);
  return old;
}

template <typename T>
T atomicOr(T* address, T value) {
  const T old = *address;
  *address = old | value;
  return old;
}

// Aligned as the hardware wants it.
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

// ---------------------------------------------------------------- arithmetic

using std::max;
using std::min;

inline float __uint_as_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Byte i of the result is the one that nibble i of `selector` counts, in x and then y.
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return result;
}

inline int __ffs(int x) {
  return __builtin_ffs(x);
}
