// Chooses the tiles of a linear layer and launches them. The choice changes no bit.
#include <cstdlib>

#include "core/check.h"
#include "core/dispatch.h"
#include "cuda/cuda_ops.h"
#include "cuda/linear/warpgroup_choice.h"
#include "cuda/linear/warpgroup_tile.cuh"

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

template <typename Shape>
void run_split(const LinearParams& p, const SplitResults& results, cudaStream_t stream) {
  launch_warpgroups<Shape>(p, is_split_well<Shape>(p), results, stream);
}

template <typename Shape>
void run_whole(const LinearParams& p, const SplitResults& results, cudaStream_t stream) {
  launch_warpgroups<Shape>(p, false, results, stream);
}

int variant() {
  static const int asked = [] {
    const char* text = std::getenv("QUIRE_LINEAR");
    return text == nullptr ? 1 : std::atoi(text);
  }();
  return asked;
}

// Starts the layer on warpgroups; false if single warps serve it as well.
template <typename T>
bool run_warpgroups(const LinearParams& p, const SplitResults& results, cudaStream_t stream) {
  if (variant() == 0) return false;
  const bool is_one_wave = fits_one_wave<DeepRowsOf64<T>>(p);
  if (p.num_rows <= 8) {
    if (!fits_one_wave<DeepRowsOf8<T>>(p) || (variant() & 2) != 0) return false;
    run_whole<DeepRowsOf8<T>>(p, results, stream);
  } else if (p.num_rows <= 16) {
    if (!fits_one_wave<DeepRowsOf16<T>>(p) || (variant() & 2) != 0) return false;
    run_whole<DeepRowsOf16<T>>(p, results, stream);
  } else if (p.num_rows <= 32) {
    if (fits_one_wave<DeepRowsOf32<T>>(p) && (variant() & 4) == 0) {
      run_whole<DeepRowsOf32<T>>(p, results, stream);
    } else {
      run_split<SeveralRowsOf32<T>>(p, results, stream);
    }
  } else {
    const double deep = is_one_wave && (variant() & 8) == 0 ? cycles<DeepRowsOf64<T>>(p) : HUGE_VAL;
    const double several = cycles<SeveralRowsOf64<T>>(p);
    const double wide = cycles<WideRowsOf128<T>>(p);
    const double widest =
        is_one_section(p) && (variant() & 16) == 0 ? cycles<WideRowsOf256<T>>(p) : HUGE_VAL;
    const double least = std::min({deep, several, wide, widest});
    if (deep == least) {
      run_whole<DeepRowsOf64<T>>(p, results, stream);
    } else if (several == least) {
      run_split<SeveralRowsOf64<T>>(p, results, stream);
    } else if (wide == least) {
      run_whole<WideRowsOf128<T>>(p, results, stream);
    } else {
      run_whole<WideRowsOf256<T>>(p, results, stream);
    }
  }
  return true;
}

template <typename T>
void run_rows(const LinearParams& p, const SplitResults& results, cudaStream_t stream) {
  if constexpr (!std::is_same_v<T, float>) {
    if (has_warpgroups() && is_aligned_call<T>(p) && run_warpgroups<T>(p, results, stream)) return;
  }
  run_warps<T>(p, results, stream);
}

}  // namespace

void linear(const LinearParams& p, cudaStream_t stream) {
  if (p.num_rows == 0 || p.out_features == 0) return;
  const SplitResults& results = of_stream<SplitMemory>(stream).get(stream);
  QUIRE_DISPATCH_DTYPE(p.dtype, T, run_rows<T>(p, results, stream));
}

// Never reached: their checks refuse tensors on a GPU, where weights stay as they are.
void pack_weight(const PackWeightParams&, cudaStream_t) {
  fail("pack_weight: must be called with tensors on the CPU");
}
void packed_linear(const PackedLinearParams&, cudaStream_t) {
  fail("packed_linear: must be called with tensors on the CPU; on a GPU linear computes it");
}
void grouped_linear(const PackedLinearParams&, cudaStream_t) {
  fail("grouped_linear: must be called with tensors on the CPU");
}

}  // namespace quire::cuda
