// Paged attention of partitions that several decoding sequences share, by products of warpgroups:
// shared.cuh with the columns of prompt_warpgroup.cuh, and the same bits.
#pragma once

#include "cuda/attention/prompt_warpgroup.cuh"
#include "cuda/attention/shared.cuh"

namespace quire::cuda {

template <typename T, int kHeadSize>
__global__ void __launch_bounds__(WarpgroupPromptShape<T, kHeadSize>::kThreads, 1)
    warpgroup_shared_kernel(const PagedAttentionParams p, const SharedItem* items,
                            const int32_t* members, PartialResults partials) {
  begin_kernel();
#if QUIRE_HAS_WARPGROUPS
  using Shape = WarpgroupPromptShape<T, kHeadSize>;
  QUIRE_SWIZZLED_SHARED(shared);
  const SharedItem item = items[blockIdx.x];
  if (item.seq == kNoWork) return;
  const SharedBounds bounds(p, item, members);
  attend_by_warpgroups<T, kHeadSize>(p, item, bounds, partials, shared, [&](const auto& columns) {
    columns.store_total(partials, int64_t{item.slot} * Shape::kColumns);
  });
#else
  __trap();  // launched by a driver that was made to take other code than the device's
#endif
}

}  // namespace quire::cuda
