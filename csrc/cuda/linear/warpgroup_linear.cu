// Chooses the tiles of a linear layer that warpgroups multiply. A source of its own: what aligns
// their shared memory would align that of other kernels, too.
#include <algorithm>
#include <type_traits>

#include "core/dispatch.h"
#include "cuda/linear/warpgroup_choice.cuh"
#include "cuda/linear/warpgroup_linear.h"
#include "cuda/linear/warpgroup_tile.cuh"

namespace quire::cuda {
namespace {

constexpr int64_t kMostRowsOfWarps = 16;

template <typename T>
void run(const LinearParams& p, const SplitResults& results, cudaStream_t stream) {
  if (p.num_rows <= 32) {
    launch_warpgroups<SmallRowsOf32<T>>(p, is_split_well<SmallRowsOf32<T>>(p), results, stream);
    return;
  }
  const double small = cycles_of_whole<SmallRowsOf64<T>>(p);
  const double deep = cycles_of_whole<DeepRowsOf64<T>>(p);
  const double wide = cycles_of_whole<WideRowsOf64<T>>(p);
  const double widest = p.num_parts > 1 ? cycles_of_whole<PartsOfRowsOf128<T>>(p)
                                        : cycles_of_whole<WideRowsOf128<T>>(p);
  const double split =
      is_split_well<WideRowsOf64<T>>(p) ? cycles_of_split<WideRowsOf64<T>>(p) : wide;
  const double least = std::min({small, deep, wide, widest, split});
  if (split == least || wide == least) {
    launch_warpgroups<WideRowsOf64<T>>(p, split < wide, results, stream);
  } else if (widest == least) {
    launch_warpgroups<WideRowsOf128<T>, PartsOfRowsOf128<T>>(p, false, results, stream);
  } else if (deep == least) {
    launch_warpgroups<DeepRowsOf64<T>>(p, false, results, stream);
  } else {
    launch_warpgroups<SmallRowsOf64<T>>(p, false, results, stream);
  }
}

}  // namespace

bool run_warpgroups(const LinearParams& p, const SplitResults& results, cudaStream_t stream) {
  if (!has_warpgroups() || p.num_rows <= kMostRowsOfWarps) return false;
  bool is_served = false;
  QUIRE_DISPATCH_DTYPE(p.dtype, T, {
    if constexpr (!std::is_same_v<T, float>) {
      is_served = is_aligned_call<T>(p);
      if (is_served) run<T>(p, results, stream);
    }
  });
  return is_served;
}

}  // namespace quire::cuda
