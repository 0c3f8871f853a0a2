// The numbers of 8-bit caches (torch.float8_e4m3fn): a sign, 4 bits of exponent with bias 7, 3 of
// mantissa; 0x7f is NaN, and there is no infinity. Conversions in plain arithmetic, with the bits
// that the instructions of compute capability 8.9 give.
#pragma once

#include "cuda/device.h"

namespace quire::cuda {

struct e4m3 {
  uint8_t bits;
};

// Exact.
__device__ __forceinline__ float to_float(e4m3 x) {
  const uint32_t magnitude = x.bits & 0x7f;
  const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
  const float value =
      magnitude >= 8 ? __uint_as_float((magnitude << 20) + (120u << 23)) : subnormal;
  if (magnitude == 0x7f) return __uint_as_float(0x7fffffff);
  return (x.bits & 0x80) != 0 ? -value : value;
}

// The nearest, ties to even; magnitudes above 448 become 448.
__device__ __forceinline__ e4m3 nearest_e4m3(float x) {
  constexpr uint32_t kLargest = 0x43e00000;         // 448
  constexpr uint32_t kSmallestNormal = 0x3c800000;  // 2^-6
  const uint32_t sign = __float_as_uint(x) >> 24 & 0x80;
  const uint32_t magnitude = __float_as_uint(x) & 0x7fffffff;
  uint32_t code;
  if (magnitude > 0x7f800000) return {0x7f};
  if (magnitude >= kLargest) {
    code = 0x7e;
  } else if (magnitude >= kSmallestNormal) {
    const uint32_t rebased = magnitude - (120u << 23);
    code = (rebased + 0x7ffff + (rebased >> 20 & 1)) >> 20;
  } else {  // adding 2^14 leaves the value, rounded to 2^-9, in the low bits
    code = __float_as_uint(__uint_as_float(magnitude) + 0x1p14f) - 0x46800000;
  }
  return {static_cast<uint8_t>(sign | code)};
}

// Two of them as two float16, the low byte first. Exact.
__device__ __forceinline__ uint32_t widen_e4m3_pair(uint32_t pair) {
  const uint32_t bytes = __byte_perm(pair, 0, 0x1404);  // each the upper byte of a half
  const uint32_t magnitudes = bytes & 0x7f007f00;
  // With its exponent a bit lower each is a float16, but 2^-8 of its value.
  const uint32_t small = (bytes & 0x80008000) | magnitudes >> 1;
  const uint32_t factors = 0x5c005c00;  // 2^8, twice
  const uint32_t is_nan = (magnitudes + 0x01000100) >> 15 & 0x00010001;
  __half2 x;
  __half2 factor;
  memcpy(&x, &small, sizeof x);
  memcpy(&factor, &factors, sizeof factor);
  const __half2 product = __hmul2(x, factor);
  uint32_t result;
  memcpy(&result, &product, sizeof result);
  return result | is_nan * 0x7fff;
}

}  // namespace quire::cuda
