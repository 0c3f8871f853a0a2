// The vectors of a row, of which the last may be a part of one.
#pragma once

#include <cstdint>

namespace quire::cpu::QUIRE_ISA {
namespace {

template <typename T>
inline F32 load_up_to(const T* p, int n) {
  return n == kLanes ? load(p) : load_partial(p, n);
}

template <typename T>
inline void store_up_to(T* p, F32 x, int n) {
  if (n == kLanes) {
    store(p, x);
  } else {
    store_partial(p, x, n);
  }
}

// Calls body(i, lanes) for consecutive vectors of [0, n); only the last may have fewer lanes.
template <typename Body>
inline void for_each_vector(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, static_cast<int>(n - i));
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
