// Where elements lie in the caches that the field began with: keys [B, Hkv, D / x, BS, x] with x
// elements of 16 bytes, values [B, Hkv, D, BS].
#pragma once

#include <cstdint>

namespace quire::cuda::seed {

template <typename T>
constexpr int kElementsOf16Bytes = 16 / static_cast<int>(sizeof(T));

// Element d of a token in a head's part of a block of keys.
template <typename T>
__device__ __forceinline__ int64_t key_index(int64_t d, int64_t slot, int64_t block_size) {
  constexpr int kX = kElementsOf16Bytes<T>;
  return (d / kX * block_size + slot) * kX + d % kX;
}

// Element d of a token in a head's part of a block of values.
__device__ __forceinline__ int64_t value_index(int64_t d, int64_t slot, int64_t block_size) {
  return d * block_size + slot;
}

}  // namespace quire::cuda::seed
