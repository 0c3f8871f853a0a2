// Floating-point numbers of 16 and 8 bits, by their definitions.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace ptx {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline float from_bf16(uint16_t bits) {
  return float_of(uint32_t{bits} << 16);
}

inline float from_f16(uint16_t bits) {
  _Float16 x;
  std::memcpy(&x, &bits, sizeof x);
  return static_cast<float>(x);
}

// To the nearest, ties to even; a NaN becomes the one that the hardware makes.
inline uint16_t to_bf16(float x) {
  if (x != x) return 0x7fff;
  const uint32_t bits = bits_of(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline uint16_t to_f16(float x) {
  if (x != x) return 0x7fff;
  const auto rounded = static_cast<_Float16>(x);
  uint16_t bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  return bits;
}

// A sign, 4 bits of exponent with bias 7, 3 of mantissa; 0x7f is NaN, and there is no infinity.
inline float from_e4m3(uint8_t code) {
  const int exponent = code >> 3 & 0xf;
  const int mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return float_of(0x7fffffff);
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(1.f + static_cast<float>(mantissa) / 8.f, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// To the nearest, ties to even; magnitudes above the largest become the largest.
inline uint8_t to_e4m3_saturated(float x) {
  if (x != x) return 0x7f;
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  constexpr uint8_t kLargest = 0x7e;
  if (magnitude >= from_e4m3(kLargest)) return sign | kLargest;
  // Codes ascend with what they stand for.
  int below = 0;
  for (int above = kLargest; above - below > 1;) {
    const int middle = (below + above) / 2;
    (from_e4m3(static_cast<uint8_t>(middle)) <= magnitude ? below : above) = middle;
  }
  const auto code = static_cast<uint8_t>(below);
  const float middle = (from_e4m3(code) + from_e4m3(code + 1)) / 2;
  const bool is_above = magnitude > middle || (magnitude == middle && below % 2 != 0);
  return static_cast<uint8_t>(sign | (below + (is_above ? 1 : 0)));
}

}  // namespace ptx
