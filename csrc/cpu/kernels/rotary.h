// Rotary position embedding (Su et al. 2021), in place. NeoX style pairs element i with i + R/2,
// GPT-J style 2i with 2i + 1; elements beyond the rotary dimension R are left alone.
#pragma once

#include "cpu/kernels/norm.h"
#include "ops/rotary.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

template <typename T>
inline void rotate_neox(T* x, const float* cos, const float* sin, int64_t half) {
  for_each_vector(half, [&](int64_t i, int lanes) {
    const F32 c = load_up_to(cos + i, lanes);
    const F32 s = load_up_to(sin + i, lanes);
    const F32 a = load_up_to(x + i, lanes);
    const F32 b = load_up_to(x + half + i, lanes);
    store_up_to(x + i, a * c - b * s, lanes);
    store_up_to(x + half + i, b * c + a * s, lanes);
  });
}

template <typename T>
inline void rotate_gptj(T* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = to_float(x[2 * i]);
    const float b = to_float(x[2 * i + 1]);
    from_float(a * cos[i] - b * sin[i], x + 2 * i);
    from_float(b * cos[i] + a * sin[i], x + 2 * i + 1);
  }
}

template <typename T>
inline void rotate_head(const RotaryParams& p, T* x, int64_t token) {
  const int64_t half = p.rotary_dim / 2;
  const float* cos = p.cos_sin_cache + p.positions[token] * p.cos_sin_stride;
  if (p.is_neox) {
    rotate_neox(x, cos, cos + half, half);
  } else {
    rotate_gptj(x, cos, cos + half, half);
  }
}

template <typename T>
inline void rotate_token(const RotaryParams& p, const RowsView& rows, int64_t num_heads,
                         int64_t token) {
  for (int64_t head = 0; head < num_heads; ++head) {
    T* x = static_cast<T*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
    rotate_head(p, x, token);
  }
}

void rotary_embedding(const RotaryParams& p, ThreadPool& pool) {
  QUIRE_DISPATCH_DTYPE(p.dtype, T, {
    const int64_t bytes =
        (p.num_heads + p.num_kv_heads) * p.rotary_dim * 2 * static_cast<int64_t>(sizeof(T));
    parallel_rows(pool, p.num_tokens, bytes, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        rotate_token<T>(p, p.query, p.num_heads, token);
        rotate_token<T>(p, p.key, p.num_kv_heads, token);
      }
    });
  });
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
