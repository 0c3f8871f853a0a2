// Storage types of 16 bits and their conversions, one element at a time. Part of the text that
// every ISA compiles for itself (see isa_scalar.cpp): everything has internal linkage in a
// namespace of the ISA's name.
#pragma once

#include <cstdint>
#include <cstring>

// For the inner loops of kernels that several tile engines share: calls cost up to half of their
// speed.
#define QUIRE_ALWAYS_INLINE inline __attribute__((always_inline))

namespace quire::cpu::QUIRE_ISA {
namespace {

struct bf16 {
  uint16_t bits;
};

struct f16 {
  uint16_t bits;
};

inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

inline float to_float(float x) {
  return x;
}

inline float to_float(bf16 x) {
  return float_of(static_cast<uint32_t>(x.bits) << 16);
}

inline float to_float(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t magnitude = x.bits & 0x7fff;
  if (magnitude >= 0x7c00)
    return float_of(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);  // inf, NaN
  if (magnitude >= 0x0400) return float_of(sign | ((magnitude << 13) + 0x38000000));
  return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24f));  // subnormal, exact
}

inline float to_float(int8_t x) {
  return static_cast<float>(x);
}

inline void from_float(float x, float* out) {
  *out = x;
}

// Round to nearest even; a NaN stays one.
inline void from_float(float x, bf16* out) {
  const uint32_t bits = bits_of(x);
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
  out->bits = static_cast<uint16_t>(nan ? bits >> 16 | 0x40 : rounded >> 16);
}

inline void from_float(float x, f16* out) {
  const uint32_t bits = bits_of(x);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t result;
  if (magnitude > 0x7f800000) {
    result = 0x7e00;
  } else if (magnitude >= 0x477ff000) {  // rounds to 65536 or more
    result = 0x7c00;
  } else if (magnitude >= 0x38800000) {
    const uint32_t rebased = magnitude - 0x38000000;
    result = (rebased + 0xfff + (rebased >> 13 & 1)) >> 13;
  } else {  // subnormal: adding 0.5 leaves the value, rounded to 2^-24, in the low bits
    result = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000;
  }
  out->bits = static_cast<uint16_t>(sign | result);
}

// `x` is an integer in range.
inline void from_float(float x, int8_t* out) {
  *out = static_cast<int8_t>(x);
}

inline int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}
inline int64_t max_of(int64_t a, int64_t b) {
  return a > b ? a : b;
}
constexpr int64_t round_up(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
