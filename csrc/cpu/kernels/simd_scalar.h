// Vectors of floats in portable C++, for machines that support no other ISA. Every ISA must give
// the bits of this one (docs/numerics.md).
#pragma once

#include "cpu/kernels/element.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr int kLanes = 8;

struct F32 {
  float v[kLanes];
};

#define QUIRE_LANEWISE(expression)                        \
  F32 r;                                                  \
  for (int i = 0; i < kLanes; ++i) r.v[i] = (expression); \
  return r

inline F32 broadcast(float x) {
  QUIRE_LANEWISE(x);
}
inline F32 zero() {
  return broadcast(0.f);
}
inline F32 iota() {
  QUIRE_LANEWISE(static_cast<float>(i));
}

template <typename T>
inline F32 load(const T* p) {
  QUIRE_LANEWISE(to_float(p[i]));
}

template <typename T>
inline F32 load_partial(const T* p, int n) {
  QUIRE_LANEWISE(i < n ? to_float(p[i]) : 0.f);
}

template <typename T>
inline void store(T* p, F32 x) {
  for (int i = 0; i < kLanes; ++i) from_float(x.v[i], p + i);
}

template <typename T>
inline void store_partial(T* p, F32 x, int n) {
  for (int i = 0; i < n; ++i) from_float(x.v[i], p + i);
}

// 32 bits for each lane, whatever they mean.
inline F32 load_words(const void* p) {
  F32 r;
  memcpy(r.v, p, sizeof r);
  return r;
}

// Pairs of bf16, one in each word, the even element in the lower half.
struct Pairs {
  F32 even;
  F32 odd;
};

inline Pairs load_pairs(const void* p) {
  const F32 words = load_words(p);
  Pairs r;
  for (int i = 0; i < kLanes; ++i) {
    r.even.v[i] = float_of(bits_of(words.v[i]) << 16);
    r.odd.v[i] = float_of(bits_of(words.v[i]) & 0xffff0000);
  }
  return r;
}

// The words of numbers that are bf16 already.
inline F32 pair_words(F32 even, F32 odd) {
  QUIRE_LANEWISE(float_of(bits_of(even.v[i]) >> 16 | (bits_of(odd.v[i]) & 0xffff0000)));
}

// 2 kLanes integers as the words of pairs of bf16 that are 2^16 times as large.
inline F32 large_pair_words(const int8_t* p) {
  QUIRE_LANEWISE(float_of(bits_of(to_float(p[2 * i]) * 0x1p16f) >> 16 |
                          bits_of(to_float(p[2 * i + 1]) * 0x1p16f)));
}

inline F32 operator+(F32 a, F32 b) {
  QUIRE_LANEWISE(a.v[i] + b.v[i]);
}
inline F32 operator-(F32 a, F32 b) {
  QUIRE_LANEWISE(a.v[i] - b.v[i]);
}
inline F32 operator*(F32 a, F32 b) {
  QUIRE_LANEWISE(a.v[i] * b.v[i]);
}
inline F32 operator/(F32 a, F32 b) {
  QUIRE_LANEWISE(a.v[i] / b.v[i]);
}
// Fused, a library call for each element: slow, but the bits are those of the other sets.
inline F32 fma(F32 a, F32 b, F32 c) {
  QUIRE_LANEWISE(__builtin_fmaf(a.v[i], b.v[i], c.v[i]));
}
// b if either is NaN or both are zero, as the x86 instructions do.
inline F32 max(F32 a, F32 b) {
  QUIRE_LANEWISE(a.v[i] > b.v[i] ? a.v[i] : b.v[i]);
}
inline F32 min(F32 a, F32 b) {
  QUIRE_LANEWISE(a.v[i] < b.v[i] ? a.v[i] : b.v[i]);
}
inline F32 abs(F32 a) {
  QUIRE_LANEWISE(__builtin_fabsf(a.v[i]));
}
// To the nearest integer, ties to even; exact for |a| < 2^22, which no caller exceeds.
inline F32 round_even(F32 a) {
  QUIRE_LANEWISE((a.v[i] + 12582912.f) - 12582912.f);
}
// 2^n for integral n in [-127, 128]: 0 at the lower end, infinity at the upper. Anything for NaN.
inline F32 pow2(F32 n) {
  QUIRE_LANEWISE(n.v[i] >= -127.f
                     ? float_of(static_cast<uint32_t>(static_cast<int32_t>(n.v[i]) + 127) << 23)
                     : 0.f);
}
// a < b ? x : y
inline F32 select_less(F32 a, F32 b, F32 x, F32 y) {
  QUIRE_LANEWISE(a.v[i] < b.v[i] ? x.v[i] : y.v[i]);
}

#undef QUIRE_LANEWISE

// In all instruction sets by adding the second half of the lanes to the first until one is left.
inline float reduce_add(F32 a) {
  return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}

inline float reduce_max(F32 a) {
  float m = a.v[0];
  for (int i = 1; i < kLanes; ++i) m = m > a.v[i] ? m : a.v[i];
  return m;
}

inline void transpose(F32* rows) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < i; ++j) {
      const float t = rows[i].v[j];
      rows[i].v[j] = rows[j].v[i];
      rows[j].v[i] = t;
    }
  }
}

inline void prefetch(const void*) {}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
