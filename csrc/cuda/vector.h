// Rows read and written sixteen bytes at a time where their addresses allow it. Which thread has
// which element of a row never depends on that, so neither does any sum; elements that are only
// copied are shared out by alignment.
#pragma once

#include "cuda/device.h"

namespace quire::cuda {

template <typename T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

template <typename T>
__device__ __forceinline__ bool is_aligned(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

// Elements [begin, begin + kSize) of a row of n, zero beyond its end.
template <typename T>
__device__ __forceinline__ void load_pack(const T* row, int64_t begin, int64_t n,
                                          float (&out)[Pack<T>::kSize]) {
  if (begin + Pack<T>::kSize <= n && is_aligned(row + begin)) {
    const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(row + begin);
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize; ++i) out[i] = to_float(pack.values[i]);
  } else {
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize; ++i)
      out[i] = begin + i < n ? to_float(row[begin + i]) : 0.f;
  }
}

template <typename T>
__device__ __forceinline__ void store_pack(T* row, int64_t begin, int64_t n,
                                           const float (&values)[Pack<T>::kSize]) {
  if (begin + Pack<T>::kSize <= n && is_aligned(row + begin)) {
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize; ++i) pack.values[i] = from_float<T>(values[i]);
    *reinterpret_cast<Pack<T>*>(row + begin) = pack;
  } else {
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize; ++i)
      if (begin + i < n) row[begin + i] = from_float<T>(values[i]);
  }
}

// Copies with `stride` threads, of which this is number `first`, sixteen bytes at a time where both
// sides allow it.
template <typename T>
__device__ __forceinline__ void copy_elements(T* dst, const T* src, int64_t count, int64_t first,
                                              int64_t stride) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
  const uintptr_t all = reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src) |
                        static_cast<uintptr_t>(bytes);
  if (all % sizeof(uint4) == 0) {
    const auto* from = reinterpret_cast<const uint4*>(src);
    auto* to = reinterpret_cast<uint4*>(dst);
    const auto packs = bytes / static_cast<int64_t>(sizeof(uint4));
    for (int64_t i = first; i < packs; i += stride) to[i] = from[i];
  } else {
    for (int64_t i = first; i < count; i += stride) dst[i] = src[i];
  }
}

}  // namespace quire::cuda
