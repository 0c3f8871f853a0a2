// Chooses the tiles of a layer with weights of 8 or 4 bits and launches them. The choice changes no
// bit.
#include "core/check.h"
#include "core/dispatch.h"
#include "cuda/cuda_ops.h"
#include "cuda/linear/weight_only_tile.cuh"

namespace quire::cuda {
namespace {

template <typename Shape>
void run(const WeightOnlyLinearParams& p, const SplitResults& results, cudaStream_t stream) {
  launch_tiles<Shape>(weight_only_kernel<Shape, true>, weight_only_kernel<Shape, false>, p,
                      is_split_well<Shape>(p), results, stream);
}

template <typename Base>
using IntegersOf8 = WeightOnlyShape<Base, 8>;
template <typename Base>
using IntegersOf4 = WeightOnlyShape<Base, 4>;

template <template <typename> typename ShapeOf, typename T>
void run_rows(const WeightOnlyLinearParams& p, const SplitResults& results, cudaStream_t stream) {
  if (p.num_rows <= 8) {
    run<ShapeOf<RowsOf8<T>>>(p, results, stream);
  } else if (p.num_rows <= 32) {
    run<ShapeOf<RowsOf32<T>>>(p, results, stream);
  } else {
    run<ShapeOf<WholeRowsOf64<T>>>(p, results, stream);
  }
}

template <typename T>
void run_format(const WeightOnlyLinearParams& p, const SplitResults& results, cudaStream_t stream) {
  if (!is_aligned_operand<T>(p.x, p.x_stride))
    fail("x: rows must begin at multiples of 16 bytes on a GPU");
  if (p.is_float) {
    run_rows<Float8Shape, T>(p, results, stream);
  } else if (p.bits == 8) {
    run_rows<IntegersOf8, T>(p, results, stream);
  } else {
    run_rows<IntegersOf4, T>(p, results, stream);
  }
}

}  // namespace

void weight_only_linear(const WeightOnlyLinearParams& p, cudaStream_t stream) {
  if (p.num_rows == 0 || p.out_features == 0) return;
  for (const auto& [name, data] :
       {std::pair<const char*, const void*>{"packed", p.weight}, {"scales", p.scales}}) {
    if (reinterpret_cast<uintptr_t>(data) % 16 != 0)
      fail(std::string(name) + ": must begin at a multiple of 16 bytes on a GPU");
  }
  const SplitResults& results = of_stream<SplitMemory>(stream).get(stream);
  if (p.dtype == DType::kBFloat16) {
    run_format<bf16>(p, results, stream);
  } else {
    run_format<f16>(p, results, stream);
  }
}

}  // namespace quire::cuda
