// Chooses the tiles of experts' linear layers and launches them. The choice changes no bit.
#include "core/dispatch.h"
#include "cuda/cuda_ops.h"
#include "cuda/experts/expert_linear.cuh"

namespace quire::cuda {
namespace {

template <typename Shape, bool kIsAligned>
void run(const ExpertLinearParams& p, cudaStream_t stream) {
  if (p.rows != nullptr) {
    launch_expert_linear<Shape, kIsAligned, true>(p, stream);
  } else {
    launch_expert_linear<Shape, kIsAligned, false>(p, stream);
  }
}

template <typename T>
void run_rows(const ExpertLinearParams& p, cudaStream_t stream) {
  if (!is_aligned_call<T>(p.linear) || p.expert_stride % Pack<T>::kSize != 0) {
    run<RowsOf64<T>, false>(p, stream);
  } else if (p.tile_rows <= 8) {
    run<RowsOf8<T>, true>(p, stream);
  } else if (p.tile_rows <= 16) {
    run<RowsOf16<T>, true>(p, stream);
  } else if (p.tile_rows <= 32) {
    run<RowsOf32<T>, true>(p, stream);
  } else {
    run<RowsOf64<T>, true>(p, stream);
  }
}

}  // namespace

void expert_linear(const ExpertLinearParams& p, cudaStream_t stream) {
  if (p.linear.num_rows == 0 || p.linear.out_features == 0) return;
  QUIRE_DISPATCH_DTYPE(p.linear.dtype, T, run_rows<T>(p, stream));
}

}  // namespace quire::cuda
