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

// The values of a device array, once what the stream does with it is done.
std::vector<int32_t> fetch(const int32_t* device, int64_t count, cudaStream_t stream) {
  std::vector<int32_t> host(static_cast<size_t>(count));
  check(cudaMemcpyAsync(host.data(), device, host.size() * sizeof(int32_t), cudaMemcpyDefault,
                        stream),
        "fetch");
  check(cudaStreamSynchronize(stream), "fetch");
  return host;
}

template <typename T>
const T* upload(const std::vector<T>& host, Workspace& workspace, cudaStream_t stream) {
  T* device = workspace.take<T>(host.size());
  check(cudaMemcpyAsync(device, host.data(), host.size() * sizeof(T), cudaMemcpyDefault, stream),
        "upload");
  return device;
}

template <typename T, int kHeadSize, int kColumnTiles>
void run(const PagedAttentionParams& p, Workspace& workspace, cudaStream_t stream) {
  using Shape = MmaShape<T, kHeadSize, kColumnTiles>;
  const AttentionPlan plan = plan_attention(p, fetch(p.seq_lens, p.num_seqs, stream).data(),
                                            fetch(p.query_start_loc, p.num_seqs + 1, stream).data(),
                                            Shape::kColumns, num_blocks_at_once());
  const size_t rows = static_cast<size_t>(plan.num_slots) * Shape::kColumns;
  workspace.begin(Workspace::piece_bytes<AttentionItem>(plan.items.size()) +
                      Workspace::piece_bytes<AttentionMerge>(plan.merges.size()) +
                      Workspace::piece_bytes<float>(rows * kHeadSize) +
                      2 * Workspace::piece_bytes<float>(rows),
                  stream);
  const auto* items = upload(plan.items, workspace, stream);
  const auto* merges = upload(plan.merges, workspace, stream);
  const PartialResults partials{workspace.take<float>(rows * kHeadSize),
                                workspace.take<float>(rows), workspace.take<float>(rows)};
  launch(attention_mma_kernel<T, kHeadSize, kColumnTiles>,
         grid_size(static_cast<int64_t>(plan.items.size())), kMmaThreads, Shape::kSharedBytes,
         stream, p, items, partials);
  launch(attention_merge_kernel<T, kHeadSize, kColumnTiles>,
         dim3(grid_size(static_cast<int64_t>(plan.merges.size())), Shape::kColumns), kMmaThreads, 0,
         stream, p, merges, partials);
}

// One tile of eight columns for decode; two where a row has more heads to a group than that, or
// where there are rows to fill them, and where registers allow it.
template <typename T, int kHeadSize>
void run_columns(const PagedAttentionParams& p, Workspace& workspace, cudaStream_t stream) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  if constexpr (kHeadSize <= 128) {
    if (group > 8 || group * p.num_tokens > 8 * p.num_seqs)
      return run<T, kHeadSize, 2>(p, workspace, stream);
  }
  run<T, kHeadSize, 1>(p, workspace, stream);
}

template <typename T>
void run_head_size(const PagedAttentionParams& p, Workspace& workspace, cudaStream_t stream) {
  switch (p.head_size) {
    case 64:
      return run_columns<T, 64>(p, workspace, stream);
    case 80:
      return run_columns<T, 80>(p, workspace, stream);
    case 96:
      return run_columns<T, 96>(p, workspace, stream);
    case 112:
      return run_columns<T, 112>(p, workspace, stream);
    case 128:
      return run_columns<T, 128>(p, workspace, stream);
    case 192:
      return run_columns<T, 192>(p, workspace, stream);
    case 256:
      return run_columns<T, 256>(p, workspace, stream);
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

void attention_mma(const PagedAttentionParams& p, Workspace& workspace, cudaStream_t stream) {
  if (p.dtype == DType::kBFloat16) {
    run_head_size<bf16>(p, workspace, stream);
  } else {
    run_head_size<f16>(p, workspace, stream);
  }
}

}  // namespace quire::cuda
