#include <vector>

#include "cuda/device_plan.h"
#include "cuda/launch.h"

namespace quire::cuda {
namespace {

template <typename T>
const T* upload(const std::vector<T>& host, Workspace& memory, cudaStream_t stream) {
  T* device = memory.take<T>(host.size());
  check(cudaMemcpyAsync(device, host.data(), host.size() * sizeof(T), cudaMemcpyDefault, stream),
        "upload");
  return device;
}

}  // namespace

// One tile for decode; two where a row has more heads to a group than that, or where there are rows
// to fill them, and where registers allow it.
int DevicePlan::column_tiles(const PagedAttentionParams& p) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  const bool has_more = group > 8 || group * p.num_tokens > 8 * p.num_seqs;
  return p.head_size <= 128 && has_more ? 2 : 1;
}

DevicePlan::DevicePlan(const PagedAttentionParams& p, const int32_t* seq_lens,
                       const int32_t* query_start_loc, cudaStream_t stream) {
  const int columns = 8 * column_tiles(p);
  const WorkPlan plan = plan_work(p, seq_lens, query_start_loc, columns, num_blocks_at_once());
  const size_t rows = static_cast<size_t>(plan.num_slots) * columns;
  const size_t acc_size = rows * static_cast<size_t>(p.head_size);
  memory_.begin(Workspace::piece_bytes<AttentionItem>(plan.items.size()) +
                    Workspace::piece_bytes<AttentionMerge>(plan.merges.size()) +
                    Workspace::piece_bytes<float>(acc_size) +
                    2 * Workspace::piece_bytes<float>(rows),
                stream);
  items_ = upload(plan.items, memory_, stream);
  merges_ = upload(plan.merges, memory_, stream);
  num_items_ = grid_size(static_cast<int64_t>(plan.items.size()));
  num_merges_ = grid_size(static_cast<int64_t>(plan.merges.size()));
  partials_ = {memory_.take<float>(acc_size), memory_.take<float>(rows), memory_.take<float>(rows)};
}

}  // namespace quire::cuda
