// The formats of weights of 8 and 4 bits that kernels are compiled for.
#pragma once

#include <string>
#include <utility>

#include "core/check.h"
#include "cuda/linear/weight_only_tile.cuh"

namespace quire::cuda {

template <typename Base>
using IntegersOf8 = WeightOnlyShape<Base, 8>;
template <typename Base>
using IntegersOf4 = WeightOnlyShape<Base, 4>;

// The shapes of a format, for x of `T`.
template <template <typename> typename ShapeOf, typename T>
struct WeightOnlyFormat {
  using OfFewRows = ShapeOf<RowsOf8<T>>;
  using OfSomeRows = ShapeOf<RowsOf32<T>>;
  using OfManyRows = ShapeOf<WholeRowsOf64<T>>;
};

// Calls `run` with a shape for tiles of so many rows.
template <typename Format, typename Run>
void dispatch_rows(int64_t num_rows, const Run& run) {
  if (num_rows <= 8) {
    run(typename Format::OfFewRows());
  } else if (num_rows <= 32) {
    run(typename Format::OfSomeRows());
  } else {
    run(typename Format::OfManyRows());
  }
}

template <typename T, typename Run>
void dispatch_format(const WeightOnlyLinearParams& p, int64_t num_rows, const Run& run) {
  if (!is_aligned_operand<T>(p.x, p.x_stride))
    fail("x: rows must begin at multiples of 16 bytes on a GPU");
  if (p.is_float) {
    dispatch_rows<WeightOnlyFormat<Float8Shape, T>>(num_rows, run);
  } else if (p.bits == 8) {
    dispatch_rows<WeightOnlyFormat<IntegersOf8, T>>(num_rows, run);
  } else {
    dispatch_rows<WeightOnlyFormat<IntegersOf4, T>>(num_rows, run);
  }
}

// Calls `run` with the shape of a layer for tiles of so many rows.
template <typename Run>
void dispatch_weight_only(const WeightOnlyLinearParams& p, int64_t num_rows, const Run& run) {
  for (const auto& [name, data] :
       {std::pair<const char*, const void*>{"packed", p.weight}, {"scales", p.scales}}) {
    if (reinterpret_cast<uintptr_t>(data) % 16 != 0)
      fail(std::string(name) + ": must begin at a multiple of 16 bytes on a GPU");
  }
  if (p.dtype == DType::kBFloat16) {
    dispatch_format<bf16>(p, num_rows, run);
  } else {
    dispatch_format<f16>(p, num_rows, run);
  }
}

}  // namespace quire::cuda
