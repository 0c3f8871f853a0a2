// Which attention kernel on tensor cores serves a call, and its launch.
#include "cuda/attention_mma.cuh"
#include "cuda/launch.h"
#include "dispatch.h"

namespace quire::cuda {
namespace {

template <typename T>
bool is_multiple(int64_t elements, int64_t bytes) {
  return elements * static_cast<int64_t>(sizeof(T)) % bytes == 0;
}

bool is_aligned_cache(const CacheView& cache) {
  return reinterpret_cast<uintptr_t>(cache.data) % 16 == 0 &&
         is_multiple<uint16_t>(cache.block_stride, 16) &&
         is_multiple<uint16_t>(cache.head_stride, 16) &&
         is_multiple<uint16_t>(cache.token_stride, 16);
}

bool is_aligned_query(const RowsView& rows) {
  return reinterpret_cast<uintptr_t>(rows.data) % 4 == 0 &&
         is_multiple<uint16_t>(rows.token_stride, 4) && is_multiple<uint16_t>(rows.head_stride, 4);
}

template <typename T, int kHeadSize, int kColumnTiles>
void run(const PagedAttentionParams& p, const DevicePlan& plan, cudaStream_t stream) {
  using Shape = MmaShape<T, kHeadSize, kColumnTiles>;
  launch(attention_mma_kernel<T, kHeadSize, kColumnTiles>, plan.num_items(), kMmaThreads,
         Shape::kSharedBytes, stream, p, plan.items(), plan.partials());
  launch(attention_merge_kernel<T, kHeadSize, kColumnTiles>,
         dim3(plan.num_merges(), Shape::kColumns), kMmaThreads, 0, stream, p, plan.merges(),
         plan.partials());
}

template <typename T, int kHeadSize>
void run_columns(const PagedAttentionParams& p, const DevicePlan& plan, cudaStream_t stream) {
  if constexpr (kHeadSize <= 128) {
    if (DevicePlan::column_tiles(p) == 2) return run<T, kHeadSize, 2>(p, plan, stream);
  }
  run<T, kHeadSize, 1>(p, plan, stream);
}

template <typename T>
void run_head_size(const PagedAttentionParams& p, const DevicePlan& plan, cudaStream_t stream) {
  switch (p.head_size) {
    case 64:
      return run_columns<T, 64>(p, plan, stream);
    case 80:
      return run_columns<T, 80>(p, plan, stream);
    case 96:
      return run_columns<T, 96>(p, plan, stream);
    case 112:
      return run_columns<T, 112>(p, plan, stream);
    case 128:
      return run_columns<T, 128>(p, plan, stream);
    case 192:
      return run_columns<T, 192>(p, plan, stream);
    case 256:
      return run_columns<T, 256>(p, plan, stream);
    default:
      dispatch_failed("head size", static_cast<int>(p.head_size));
  }
}

}  // namespace

bool attention_mma_serves(const PagedAttentionParams& p) {
  switch (p.head_size) {
    case 64:
    case 80:
    case 96:
    case 112:
    case 128:
    case 192:
    case 256:
      break;
    default:
      return false;
  }
  return (p.dtype == DType::kBFloat16 || p.dtype == DType::kFloat16) &&
         is_aligned_cache(p.key_cache) && is_aligned_cache(p.value_cache) &&
         is_aligned_query(p.query);
}

void attention_mma(const PagedAttentionParams& p, const DevicePlan& plan, cudaStream_t stream) {
  if (p.dtype == DType::kBFloat16) {
    run_head_size<bf16>(p, plan, stream);
  } else {
    run_head_size<f16>(p, plan, stream);
  }
}

}  // namespace quire::cuda
