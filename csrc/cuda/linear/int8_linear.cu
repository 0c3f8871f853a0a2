// Chooses the tile of an int8 layer and launches it. The choice changes no bit.
#include "core/check.h"
#include "core/dispatch.h"
#include "cuda/cuda_ops.h"
#include "cuda/linear/int8_tile.cuh"
#include "cuda/workspace.h"

namespace quire::cuda {
namespace {

// Rows in int8, of which more than fit come in turns.
constexpr int64_t kRowMemory = 32 << 20;
using RowMemory = FixedMemory<kRowMemory>;

template <typename T, typename Out>
void run_rows(const PackedLinearParams& p, const Int8Rows& rows, cudaStream_t stream) {
  const bool has_pairs = (p.out_features + kPanelFeatures - 1) / kPanelFeatures % 2 == 0;
  if (p.num_rows <= 8) {
    launch_int8_linear<Int8Shape<1, 1>, T, Out>(p, rows, stream);
  } else if (p.num_rows <= 16) {
    launch_int8_linear<Int8Shape<1, 2>, T, Out>(p, rows, stream);
  } else if (p.num_rows <= 32 || !has_pairs) {
    launch_int8_linear<Int8Shape<1, 4>, T, Out>(p, rows, stream);
  } else {
    launch_int8_linear<Int8Shape<2, 8>, T, Out>(p, rows, stream);
  }
}

}  // namespace

void int8_linear(const PackedLinearParams& p, cudaStream_t stream) {
  if (p.num_rows == 0 || p.out_features == 0) return;
  if (reinterpret_cast<uintptr_t>(p.weight) % 16 != 0) {
    fail("packed: must begin at a multiple of 16 bytes on a GPU");
  }
  const int64_t length = p.in_features / p.num_parts;
  const int64_t blocks = (length + kInt8Block - 1) / kInt8Block;
  const int64_t row_bytes = p.num_parts * (blocks * kInt8Block + int64_t{sizeof(float)});
  const int64_t rows_at_once = std::min(kRowMemory / row_bytes, p.num_rows);
  auto* elements = of_stream<RowMemory>(stream).get<int8_t>();
  auto* scales =
      reinterpret_cast<float*>(elements + rows_at_once * p.num_parts * blocks * kInt8Block);
  for (int64_t row = 0; row < p.num_rows; row += rows_at_once) {
    PackedLinearParams turn = p;
    turn.num_rows = std::min(rows_at_once, p.num_rows - row);
    const int64_t out_size = p.out_is_float ? 4 : element_size(p.dtype);
    turn.out = static_cast<char*>(p.out) + row * p.out_stride * out_size;
    turn.x = static_cast<const char*>(p.x) + row * p.x_stride * element_size(p.dtype);
    const Int8Rows rows{elements, scales, blocks};
    if (p.out_is_float) {
      QUIRE_DISPATCH_DTYPE(p.dtype, T, run_rows<T, float>(turn, rows, stream));
    } else {
      QUIRE_DISPATCH_DTYPE(p.dtype, T, run_rows<T, T>(turn, rows, stream));
    }
  }
}

}  // namespace quire::cuda
