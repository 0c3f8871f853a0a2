// Rows of an int8 cache: D integers in [-127, 127], then the float32 that they are multiples of, a
// 127th of the row's largest magnitude. A row is quantised by itself, so what is cached of a token
// depends on that token alone.
#pragma once

#include "core/params.h"
#include "cpu/kernels/element.h"
#include "cpu/kernels/row_vectors.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

// Rows of smaller numbers than this many times 127 become zero: the inverse would be infinite.
constexpr float kSmallestScale = 0x1p-126f;

inline float row_scale(const int8_t* row, int64_t head_size) {
  float scale;
  memcpy(&scale, row + head_size, sizeof scale);
  return scale;
}

template <typename T>
inline void quantise_row(const T* row, int8_t* cached, int64_t head_size) {
  F32 largest = zero();
  F32 poison = zero();  // NaN if there is an infinity or NaN in the row
  for_each_vector(head_size, [&](int64_t d, int lanes) {
    const F32 x = load_up_to(row + d, lanes);
    largest = max(largest, abs(x));
    poison = fma(x, zero(), poison);
  });
  float scale = reduce_max(largest) / 127.f + reduce_add(poison);
  if (scale < kSmallestScale) scale = 0.f;
  if (scale != scale) scale = __builtin_nanf("");  // one NaN, whatever those of the row were
  memcpy(cached + head_size, &scale, sizeof scale);
  if (!(scale > 0.f)) {
    memset(cached, 0, head_size);
    return;
  }
  const F32 inverse = broadcast(1.f / scale);
  for_each_vector(head_size, [&](int64_t d, int lanes) {
    store_up_to(cached + d, round_even(load_up_to(row + d, lanes) * inverse), lanes);
  });
}

template <typename T>
inline void dequantise_row(const int8_t* cached, T* row, int64_t head_size) {
  const F32 scale = broadcast(row_scale(cached, head_size));
  for_each_vector(head_size, [&](int64_t d, int lanes) {
    store_up_to(row + d, load_up_to(cached + d, lanes) * scale, lanes);
  });
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
