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

// A format, for x of `T`.
template <template <typename> typename ShapeOf_, typename T>
struct WeightOnlyFormat {
  using Element = T;
  template <typename Base>
  using ShapeOf = ShapeOf_<Base>;
  using OfFewRows = ShapeOf<StreamedRowsOf8<T>>;
  using OfSomeRows = ShapeOf<StreamedRowsOf32<T>>;
  using OfManyRows = ShapeOf<WholeRowsOf64<T>>;
};

template <typename T, typename Run>
void dispatch_format(const WeightOnlyLinearParams& p, const Run& run) {
  if (!is_aligned_operand<T>(p.x, p.x_stride))
    fail("x: rows must begin at multiples of 16 bytes on a GPU");
  if (p.is_float) {
    run(WeightOnlyFormat<Float8Shape, T>());
  } else if (p.bits == 8) {
    run(WeightOnlyFormat<IntegersOf8, T>());
  } else {
    run(WeightOnlyFormat<IntegersOf4, T>());
  }
}

// Calls `run` with the format of a layer.
template <typename Run>
void dispatch_weight_only(const WeightOnlyLinearParams& p, const Run& run) {
  for (const auto& [name, data] :
       {std::pair<const char*, const void*>{"packed", p.weight}, {"scales", p.scales}}) {
    if (reinterpret_cast<uintptr_t>(data) % 16 != 0)
      fail(std::string(name) + ": must begin at a multiple of 16 bytes on a GPU");
  }
  if (p.dtype == DType::kBFloat16) {
    dispatch_format<bf16>(p, run);
  } else {
    dispatch_format<f16>(p, run);
  }
}

// Calls `run` with the shape of a layer for tiles of so many rows.
template <typename Run>
void dispatch_weight_only(const WeightOnlyLinearParams& p, int64_t num_rows, const Run& run) {
  dispatch_weight_only(p, [&](auto format) {
    using Format = decltype(format);
    if (num_rows <= 8) {
      run(typename Format::OfFewRows());
    } else if (num_rows <= 32) {
      run(typename Format::OfSomeRows());
    } else {
      run(typename Format::OfManyRows());
    }
  });
}

}  // namespace quire::cuda
