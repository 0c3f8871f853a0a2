// Chooses the tiles of a layer with weights of 8 or 4 bits and launches them. The choice changes no
// bit.
#include "cuda/cuda_ops.h"
#include "cuda/linear/warpgroup_linear.h"
#include "cuda/linear/weight_only_formats.cuh"

namespace quire::cuda {

void weight_only_linear(const WeightOnlyLinearParams& p, cudaStream_t stream) {
  if (p.num_rows == 0 || p.out_features == 0) return;
  const SplitResults& results = of_stream<SplitMemory>(stream).get(stream);
  if (run_warpgroups(p, results, stream)) return;
  dispatch_weight_only(p, p.num_rows, [&](auto shape) {
    using Shape = decltype(shape);
    const auto kernel =
        p.num_parts > 1 ? weight_only_kernel<Shape, true> : weight_only_kernel<Shape, false>;
    launch_tiles<Shape>(kernel, p, is_split_well<Shape>(p), results, stream);
  });
}

}  // namespace quire::cuda
