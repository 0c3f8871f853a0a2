// Sums of floats whose order of additions is one for every width of vectors: element i is added to
// partial sum i mod N, for a fixed N, and the partial sums are added by folding: the second half of
// them to the first, then the second half of what is left, until there is one.
#pragma once

#include "cpu/kernels/element.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

// Folds the N partial sums in `sums`, which it overwrites.
template <int N>
QUIRE_ALWAYS_INLINE float fold_sums(F32 (&sums)[N / kLanes]) {
  for (int width = N / kLanes / 2; width > 0; width /= 2) {
    for (int v = 0; v < width; ++v) sums[v] = sums[v] + sums[v + width];
  }
  return reduce_add(sums[0]);
}

// Sum over i in [0, n) of body(i, lanes), in 64 partial sums. body returns the vector of terms i ..
// i + lanes - 1, and zero in the lanes beyond.
template <typename Body>
inline float sum_row(int64_t n, const Body& body) {
  constexpr int kPartialSums = 64;
  constexpr int kVectors = kPartialSums / kLanes;
  F32 sums[kVectors];
  for (int v = 0; v < kVectors; ++v) sums[v] = zero();
  int64_t i = 0;
  for (; i + kPartialSums <= n; i += kPartialSums) {
    for (int v = 0; v < kVectors; ++v) sums[v] = sums[v] + body(i + v * kLanes, kLanes);
  }
  for (int v = 0; v < kVectors; ++v) {
    const int64_t rest = n - i - v * kLanes;
    if (rest > 0) sums[v] = sums[v] + body(i + v * kLanes, static_cast<int>(min_of(kLanes, rest)));
  }
  return fold_sums<kPartialSums>(sums);
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
