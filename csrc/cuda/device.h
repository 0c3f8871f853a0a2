// The parts of CUDA that kernels use beyond plain C++. Compiled by nvcc, or by any C++ compiler
// with the headers of tests/emu/include in the place of CUDA's; beyond this file only ptx.h,
// warpgroup.h, launch.h and peers/ ask which.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace quire::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;

constexpr int kWarpSize = 32;
constexpr uint32_t kFullMask = 0xffffffffu;

// Shared memory of the block: as many bytes as the launch asks for, from a multiple of 128 or of
// 1,024 bytes on, or an array of a fixed size.
#if defined(__CUDACC__)
#define QUIRE_DYNAMIC_SHARED(name) extern __shared__ __align__(128) char name[]
#define QUIRE_SWIZZLED_SHARED(name)               \
  extern __shared__ __align__(1024) char whole[]; \
  char* const name = whole
#define QUIRE_SHARED(T, name, count) __shared__ T name[count]
#else
#define QUIRE_DYNAMIC_SHARED(name) char* const name = ::emu::Machine::current().dynamic_shared()
#define QUIRE_SWIZZLED_SHARED(name) QUIRE_DYNAMIC_SHARED(name)
#define QUIRE_SHARED(T, name, count) \
  static const char name##_tag = 0;  \
  T* const name = ::emu::static_shared<T>(&name##_tag, count)
#endif

// The first thing that a kernel does. From sm_90 on it starts while the kernel before it in the
// stream still runs, whose results it awaits here, and when all of its own blocks have come so far
// the next one may start.
__device__ __forceinline__ void begin_kernel() {
#if !defined(__CUDACC__)
  ::emu::Machine::current().thread().has_begun = true;
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// ---------------------------------------------------------------- element types

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(bf16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(f16 x) {
  return __half2float(x);
}

template <typename T>
__device__ __forceinline__ T from_float(float x);

template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float x) {
  return __float2half_rn(x);
}

// The exponent of a power of two.
__device__ __forceinline__ int log2_of(int64_t power) {
  return __ffs(static_cast<int>(power)) - 1;
}

// ---------------------------------------------------------------- reductions

// Sum over the warp, the same in every lane: each lane adds the same two numbers at each level.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int flipped = kWarpSize / 2; flipped > 0; flipped /= 2)
    x += __shfl_xor_sync(kFullMask, x, flipped);
  return x;
}

// Sum over a block of `kThreads`, the same in every thread; all threads must call it.
template <int kThreads>
__device__ __forceinline__ float block_sum(float x) {
  constexpr int kWarps = kThreads / kWarpSize;
  QUIRE_SHARED(float, partial, kWarps);
  x = warp_sum(x);
  __syncthreads();  // a sum before this one has been read
  if (threadIdx.x % kWarpSize == 0) partial[threadIdx.x / kWarpSize] = x;
  __syncthreads();
  float total = 0.f;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) total += partial[warp];
  return total;
}

}  // namespace quire::cuda
