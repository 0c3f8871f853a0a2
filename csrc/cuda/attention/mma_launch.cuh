// Launches of attention on tensor cores, for one type of activations and one of caches.
#pragma once

#include "core/dispatch.h"
#include "cuda/attention/mma.cuh"
#include "cuda/launch.h"

namespace quire::cuda {

template <typename T, typename Cached, int kHeadSize, int kColumnTiles>
void run_attention_mma(const PagedAttentionParams& p, const DevicePlan& plan, cudaStream_t stream) {
  using Shape = MmaShape<Cached, kHeadSize, kColumnTiles>;
  launch(attention_mma_kernel<T, Cached, kHeadSize, kColumnTiles>, plan.num_items(), kMmaThreads,
         Shape::kSharedBytes, stream, p, plan.items(), plan.partials());
  launch(attention_merge_kernel<T, Cached, kHeadSize, kColumnTiles>,
         dim3(plan.num_merges(), Shape::kColumns), kMmaThreads, 0, stream, p, plan.merges(),
         plan.partials());
}

template <typename T, typename Cached, int kHeadSize>
void run_attention_mma_columns(const PagedAttentionParams& p, const DevicePlan& plan,
                               cudaStream_t stream) {
  if constexpr (kHeadSize <= 128) {
    if (DevicePlan::column_tiles(p) == 2)
      return run_attention_mma<T, Cached, kHeadSize, 2>(p, plan, stream);
  }
  run_attention_mma<T, Cached, kHeadSize, 1>(p, plan, stream);
}

template <typename T, typename Cached>
void attention_mma_of(const PagedAttentionParams& p, const DevicePlan& plan, cudaStream_t stream) {
  switch (p.head_size) {
    case 64:
      return run_attention_mma_columns<T, Cached, 64>(p, plan, stream);
    case 80:
      return run_attention_mma_columns<T, Cached, 80>(p, plan, stream);
    case 96:
      return run_attention_mma_columns<T, Cached, 96>(p, plan, stream);
    case 112:
      return run_attention_mma_columns<T, Cached, 112>(p, plan, stream);
    case 128:
      return run_attention_mma_columns<T, Cached, 128>(p, plan, stream);
    case 192:
      return run_attention_mma_columns<T, Cached, 192>(p, plan, stream);
    case 256:
      return run_attention_mma_columns<T, Cached, 256>(p, plan, stream);
    default:
      dispatch_failed("head size", static_cast<int>(p.head_size));
  }
}

}  // namespace quire::cuda
