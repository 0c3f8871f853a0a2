// Products of vectors of 16-bit elements, two at a time.
#pragma once

#include "cuda/device.h"

namespace quire::cuda::seed {

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T values[kCount];
};

__device__ __forceinline__ __half2 pair_of(f16 low, f16 high) {
  return __halves2half2(low, high);
}
__device__ __forceinline__ __nv_bfloat162 pair_of(bf16 low, bf16 high) {
  return __halves2bfloat162(low, high);
}

// The sum of products, in float32 for float32. Of 16-bit types each half of a pair adds up every
// other product, rounded to the type kCount / 2 times; the halves are added in float32. So a sum
// has to stay in the type's range.
template <int kCount>
__device__ __forceinline__ float dot(const Vector<float, kCount>& a,
                                     const Vector<float, kCount>& b) {
  float sum = a.values[0] * b.values[0];
#pragma unroll
  for (int i = 1; i < kCount; ++i) sum = fmaf(a.values[i], b.values[i], sum);
  return sum;
}
template <typename T, int kCount>
__device__ __forceinline__ float dot(const Vector<T, kCount>& a, const Vector<T, kCount>& b) {
  static_assert(sizeof(T) == 2 && kCount % 2 == 0, "pairs of 16-bit elements");
  auto sum = __hmul2(pair_of(a.values[0], a.values[1]), pair_of(b.values[0], b.values[1]));
#pragma unroll
  for (int i = 2; i < kCount; i += 2) {
    sum =
        __hfma2(pair_of(a.values[i], a.values[i + 1]), pair_of(b.values[i], b.values[i + 1]), sum);
  }
  return to_float(sum.x) + to_float(sum.y);
}

}  // namespace quire::cuda::seed
