// Chooses the tiles of heads' linear layers and launches them. The choice changes no bit.
#include "core/dispatch.h"
#include "cuda/cuda_ops.h"
#include "cuda/linear/head_linear.cuh"

namespace quire::cuda {
namespace {

template <typename T>
void run_rows(const HeadLinearParams& p, cudaStream_t stream) {
  const bool is_aligned = is_aligned_call<T>(p.head) && p.x_head_stride % Pack<T>::kSize == 0 &&
                          p.weight_head_stride % Pack<T>::kSize == 0;
  // As in linear.cu.
  const bool fills_device =
      8 * num_tiles<RowsOf128<T>>(p.head) * p.num_heads >= 3 * num_blocks_at_once();
  if (!is_aligned) {
    launch_head_linear<RowsOf64<T>, false>(p, stream);
  } else if (p.head.num_rows <= 8) {
    launch_head_linear<RowsOf8<T>, true>(p, stream);
  } else if (p.head.num_rows <= 16) {
    launch_head_linear<RowsOf16<T>, true>(p, stream);
  } else if (p.head.num_rows <= 32) {
    launch_head_linear<RowsOf32<T>, true>(p, stream);
  } else if (p.head.num_rows <= 64 || !fills_device) {
    launch_head_linear<RowsOf64<T>, true>(p, stream);
  } else {
    launch_head_linear<RowsOf128<T>, true>(p, stream);
  }
}

}  // namespace

void head_linear(const HeadLinearParams& p, cudaStream_t stream) {
  if (p.head.num_rows == 0 || p.head.out_features == 0) return;
  QUIRE_DISPATCH_DTYPE(p.head.dtype, T, run_rows<T>(p, stream));
}

}  // namespace quire::cuda
