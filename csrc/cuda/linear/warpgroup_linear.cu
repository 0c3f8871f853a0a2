// Chooses the tiles of a linear layer that warpgroups multiply. A source of its own: what aligns
// their shared memory would align that of other kernels, too.
#include <type_traits>

#include "core/dispatch.h"
#include "cuda/linear/warpgroup_choice.cuh"
#include "cuda/linear/warpgroup_linear.h"
#include "cuda/linear/warpgroup_tile.cuh"

namespace quire::cuda {
namespace {

constexpr int64_t kMostRowsOfWarps = 16;

// The launch that takes fewest cycles of those offered, and of equal ones the first.
class Choice {
 public:
  using Launch = void (*)(const LinearParams&, bool, const SplitResults&, cudaStream_t);

  explicit Choice(const LinearParams& p) : p_(p) {}

  template <typename Shape>
  void offer(Launch launch) {
    const double cycles = cycles_of_whole<Shape>(p_);
    if (best_ != nullptr && cycles >= least_) return;
    least_ = cycles;
    best_ = launch;
  }

  void run(const SplitResults& results, cudaStream_t stream) const {
    best_(p_, false, results, stream);
  }

 private:
  const LinearParams& p_;
  double least_ = 0;
  Launch best_ = nullptr;
};

template <typename T>
void run(const LinearParams& p, const SplitResults& results, cudaStream_t stream) {
  if (p.num_rows <= 32) {
    launch_warpgroups<SmallRowsOf32<T>>(p, is_split_well<SmallRowsOf32<T>>(p), results, stream);
    return;
  }
  Choice choice(p);
  choice.offer<SmallRowsOf64<T>>(launch_warpgroups<SmallRowsOf64<T>>);
  choice.offer<DeepRowsOf64<T>>(launch_warpgroups<DeepRowsOf64<T>>);
  choice.offer<WideRowsOf64<T>>(launch_warpgroups<WideRowsOf64<T>>);
  if (p.num_parts > 1) {
    choice.offer<PartsOfRowsOf128<T>>(launch_cut<PartsOfRowsOf128<T>>);
    choice.offer<PartsOfRowsOf64<T>>(launch_cut<PartsOfRowsOf64<T>>);
  } else {
    if (linear_sections(p.total_features, p.total_parts, p.in_features).count == 1)
      choice.offer<WidestRowsOf256<T>>(launch_whole<WidestRowsOf256<T>>);
    choice.offer<WideRowsOf128<T>>(launch_whole<WideRowsOf128<T>>);
  }
  choice.run(results, stream);
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
