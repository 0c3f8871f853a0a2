// Dense layers over weights of x's own type (see pack_weight in cpu/linear.cpp).
#pragma once

#include "cpu/kernels/linear_call.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

// How the elements of a type are multiplied: their layout in a panel, and the packed type of x.
template <typename T>
struct Elements;
template <>
struct Elements<float> {
  using Pair = FloatPair;
  using X = float;
};
template <>
struct Elements<f16> {
  using Pair = HalfPair;
  using X = float;
};
template <>
struct Elements<bf16> {
  using Pair = Bf16Pair;
#if defined(__AVX512BF16__)
  using X = bf16;
#else
  using X = float;
#endif
};

template <typename Type>
struct DenseOperands {
  using T = Type;
  using Pair = typename Elements<T>::Pair;
  using X = typename Elements<T>::X;
  static constexpr int kStep = 2;
  static constexpr int kStepBytes = Pair::kBytes;
  static constexpr int64_t kTailBytes = 0;
  static constexpr int64_t kChunk = 256;

  explicit DenseOperands(const PackedLinearParams&) {}

  const T* row_elements(const T* part, int64_t, int64_t, int64_t) const { return part; }

  XRows<X> rows(const X* data, int64_t block_stride, int64_t, int64_t) const {
    return {data, block_stride};
  }

  // The tile of `rows` rows, a constant of kRows or fewer.
  template <int kRows, bool kIsStream, bool kIsMulti>
  static void multiply_rows(int rows, const XRows<X>& x, const TileWeights& weights,
                            const TileSums& out) {
    if constexpr (kRows > 1) {
      if (rows < kRows) return multiply_rows<kRows - 1, kIsStream, kIsMulti>(rows, x, weights, out);
    }
    constexpr int kPanels = kIsMulti ? panels_of(kRows) : 1;
#if defined(__AVX512BF16__)
    if constexpr (sizeof(X) == sizeof(bf16))
      return multiply_tile_of_pairs<kRows, kPanels, kIsStream>(x, weights, out);
#endif
    if constexpr (sizeof(X) == sizeof(float)) {
      constexpr int kVectors = vectors_of(kRows);
      for (int column = 0; column < kPanel; column += kVectors * kLanes)
        multiply_tile<Pair, kRows, kPanels, kVectors, kIsStream>(x, weights, column, out);
    }
  }
};

}  // namespace

void packed_linear(const PackedLinearParams& p, ThreadPool& pool) {
  if (p.num_rows == 0) return;
  QUIRE_DISPATCH_DTYPE(p.dtype, T, LinearCall<DenseOperands<T>>(p, pool).run());
}

}  // namespace quire::cpu::QUIRE_ISA
