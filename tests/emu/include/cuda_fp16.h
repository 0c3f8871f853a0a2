// float16 as CUDA names it.
#pragma once

#include "cuda_runtime.h"
#include "fused.h"

struct __half {
  uint16_t bits;
};

inline float __half2float(__half x) {
  _Float16 value;
  memcpy(&value, &x.bits, sizeof value);
  return static_cast<float>(value);
}

// Round to nearest even; NaN becomes the one that the hardware makes.
inline __half __float2half_rn(float x) {
  if (x != x) return {0x7fff};
  const auto value = static_cast<_Float16>(x);
  __half result;
  memcpy(&result.bits, &value, sizeof value);
  return result;
}

struct __half2 {
  __half x;
  __half y;
};

inline __half2 __halves2half2(__half x, __half y) {
  return {x, y};
}

inline __half2 __hmul2(__half2 a, __half2 b) {
  return {__float2half_rn(__half2float(a.x) * __half2float(b.x)),
          __float2half_rn(__half2float(a.y) * __half2float(b.y))};
}

inline __half __hfma(__half a, __half b, __half c) {
  return __float2half_rn(emu::fma_to_odd(__half2float(a), __half2float(b), __half2float(c)));
}

inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
