// Rotary position embedding (Su et al. 2021). NeoX style pairs element i with i + R/2, GPT-J style
// 2i with 2i + 1.
#pragma once

#include "cuda/device.h"
#include "ops/rotary.h"

namespace quire::cuda {

// The rotation of a token's pairs.
struct TokenRotation {
  const float* cosines;
  int64_t half;
  bool is_neox;

  __device__ TokenRotation(const RotaryParams& p, int64_t token)
      : TokenRotation(p.cos_sin_cache + p.positions[token] * p.cos_sin_stride, p.rotary_dim,
                      p.is_neox) {}

  __device__ TokenRotation(const float* cosines, int64_t rotary_dim, bool is_neox)
      : cosines(cosines), half(rotary_dim / 2), is_neox(is_neox) {}

  // Rotates pair i of a head whose elements read(element) returns: calls write(element, value) for
  // both.
  template <typename T, typename Read, typename Write>
  __device__ void rotate_read(const Read& read, int64_t i, const Write& write) const {
    const float* sines = cosines + half;
    const int64_t first = is_neox ? i : 2 * i;
    const int64_t second = is_neox ? i + half : 2 * i + 1;
    const float a = read(first);
    const float b = read(second);
    write(first, from_float<T>(a * cosines[i] - b * sines[i]));
    write(second, from_float<T>(b * cosines[i] + a * sines[i]));
  }

  // The same of the head `x`.
  template <typename T, typename Write>
  __device__ void rotate(const T* x, int64_t i, const Write& write) const {
    rotate_read<T>([x](int64_t d) { return to_float(x[d]); }, i, write);
  }
};

// The address of a token's head among rows.
template <typename T>
__device__ __forceinline__ T* head_address(const RowsView& rows, int64_t token, int64_t head) {
  return static_cast<T*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
}

}  // namespace quire::cuda
