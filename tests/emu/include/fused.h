// A fused multiply-add that can be rounded again, to a format of 22 bits or fewer.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emu {

// Of two neighbours of x, the one whose last bit is 1, unless x is one of both (Boldo and Melquiond
// 2008, Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd).
inline float round_to_odd(double x) {
  float nearest = static_cast<float>(x);
  if (!std::isfinite(nearest) || static_cast<double>(nearest) == x) return nearest;
  uint32_t bits;
  std::memcpy(&bits, &nearest, sizeof bits);
  if (bits % 2 != 0) return nearest;
  return std::nextafter(nearest, x > nearest ? INFINITY : -INFINITY);
}

// a b + c of 11-bit numbers, whose product is exact in float64, rounded to odd.
inline float fma_to_odd(float a, float b, float c) {
  const double product = static_cast<double>(a) * b;
  const double sum = product + c;
  if (!std::isfinite(sum)) return static_cast<float>(sum);
  // What the addition lost (Knuth's two-sum).
  const double added = sum - product;
  const double lost = (product - (sum - added)) + (c - added);
  uint64_t bits;
  std::memcpy(&bits, &sum, sizeof bits);
  if (lost == 0 || bits % 2 != 0) return round_to_odd(sum);
  return round_to_odd(std::nextafter(sum, lost > 0 ? INFINITY : -INFINITY));
}

}  // namespace emu
