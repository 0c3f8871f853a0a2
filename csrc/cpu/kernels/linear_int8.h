// Dense layers of int8 weights and activations (W8A8): a part of a row is quantised by itself, as a
// row of an int8 cache is, so its integers depend on nothing else.
#pragma once

#include "cpu/kernels/int8_rows.h"
#include "cpu/kernels/linear_call.h"
#include "cpu/kernels/linear_int8_tile.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

template <typename Type>
class Int8Operands {
 public:
  using T = Type;
  using X = int8_t;
  static constexpr int kStep = kFour;
  static constexpr int kStepBytes = kFourBytes;
  static constexpr int64_t kTailBytes = kPanel * sizeof(float);
  static constexpr int64_t kChunk = kMaxInt8Part;
  static constexpr bool kIsUnpacked = false;

  explicit Int8Operands(const PackedLinearParams& p) : num_parts_(p.num_parts) {
    static thread_local RowMemory memory;
    scales_ =
        static_cast<RowScale*>(memory.get(p.num_rows * num_parts_ * int64_t{sizeof(RowScale)}));
  }

  int64_t bytes_of(int64_t elements) const { return elements / kStep * kStepBytes; }

  const int8_t* row_elements(const T* part, int64_t length, int64_t row, int64_t index) const {
    static thread_local RowMemory memory;
    int8_t* elements = static_cast<int8_t*>(memory.get(length + kRowScaleBytes));
    quantise_row(part, elements, length);
    int32_t sum = 0;
    for (int64_t k = 0; k < length; ++k) sum += elements[k];
    scales_[row * num_parts_ + index] = {row_scale(elements, length), -128 * sum};
    return elements;
  }

  XRows<X> rows(const X* data, int64_t block_stride, int64_t row, int64_t part) const {
    return {data, block_stride, scales_ + row * num_parts_ + part, num_parts_};
  }

  // The tile of `rows` rows, a constant of kRows or fewer.
  template <int kRows, bool kIsStream>
  static void multiply_rows(int rows, const XRows<X>& x, const TileWeights& weights,
                            const TileSums& out) {
    if constexpr (kRows > 1) {
      if (rows < kRows) return multiply_rows<kRows - 1, kIsStream>(rows, x, weights, out);
    }
    constexpr int kVectors = vectors_of(kRows);
    for (int column = 0; column < kPanel; column += kVectors * kLanes)
      multiply_int8_tile<kRows, kVectors, kIsStream>(x, weights, column, out);
  }

 private:
  const int64_t num_parts_;
  RowScale* scales_;  // [rows][parts]
};

}  // namespace

void int8_linear(const PackedLinearParams& p, ThreadPool& pool) {
  if (p.num_rows == 0) return;
  QUIRE_DISPATCH_DTYPE(p.dtype, T, LinearCall<Int8Operands<T>>(p, pool).run());
}

}  // namespace quire::cpu::QUIRE_ISA
