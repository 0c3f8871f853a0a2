// Chooses the tiles of a linear layer and launches them. The choice changes no bit.
#include "core/check.h"
#include "core/dispatch.h"
#include "cuda/cuda_ops.h"
#include "cuda/linear/linear.cuh"
#include "cuda/linear/warpgroup_linear.h"

namespace quire::cuda {
namespace {

template <typename Shape, bool kIsAligned>
void run(const LinearParams& p, const SplitResults& results, cudaStream_t stream) {
  launch_linear<Shape, kIsAligned>(p, is_split_well<Shape>(p), results, stream);
}

template <typename T>
void run_warps(const LinearParams& p, const SplitResults& results, cudaStream_t stream) {
  // The largest tile, one block to a multiprocessor, pays once most of them have one.
  const bool fills_device = 8 * num_tiles<RowsOf128<T>>(p) >= 3 * num_blocks_at_once();
  if (!is_aligned_call<T>(p)) {
    run<RowsOf64<T>, false>(p, results, stream);
  } else if (p.num_rows <= 8) {
    run<RowsOf8<T>, true>(p, results, stream);
  } else if (p.num_rows <= 16) {
    run<RowsOf16<T>, true>(p, results, stream);
  } else if (p.num_rows <= 32) {
    run<RowsOf32<T>, true>(p, results, stream);
  } else if (p.num_rows <= 64 || !fills_device) {
    run<RowsOf64<T>, true>(p, results, stream);
  } else {
    launch_linear<RowsOf128<T>, true>(p, false, results, stream);
  }
}

}  // namespace

void linear(const LinearParams& p, cudaStream_t stream) {
  if (p.num_rows == 0 || p.out_features == 0) return;
  const SplitResults& results = of_stream<SplitMemory>(stream).get(stream);
  if (run_warpgroups(p, results, stream)) return;
  QUIRE_DISPATCH_DTYPE(p.dtype, T, run_warps<T>(p, results, stream));
}

// Never reached: their checks refuse tensors on a GPU, where weights stay as they are.
void pack_weight(const PackWeightParams&, cudaStream_t) {
  fail("pack_weight: must be called with tensors on the CPU");
}
void packed_linear(const PackedLinearParams&, cudaStream_t) {
  fail("packed_linear: must be called with tensors on the CPU; on a GPU linear computes it");
}
void packed_head_linear(const PackedHeadLinearParams&, cudaStream_t) {
  fail("packed_head_linear: must be called with tensors on the CPU");
}
void grouped_linear(const PackedLinearParams&, cudaStream_t) {
  fail("grouped_linear: must be called with tensors on the CPU");
}

}  // namespace quire::cuda
