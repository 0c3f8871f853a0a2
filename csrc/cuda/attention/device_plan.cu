#include <algorithm>

#include "core/check.h"
#include "cuda/attention/device_plan.h"
#include "cuda/launch.h"

namespace quire::cuda {
namespace {

// Bytes that the results of `num_rows` columns take.
size_t partials_bytes(size_t num_rows, int64_t head_size) {
  return Workspace::piece_bytes<float>(num_rows * static_cast<size_t>(head_size)) +
         2 * Workspace::piece_bytes<float>(num_rows);
}

PartialResults cut(void* memory, size_t num_rows, int64_t head_size) {
  auto* acc = static_cast<float*>(memory);
  float* max = acc + Workspace::piece_bytes<float>(num_rows * static_cast<size_t>(head_size)) /
                         sizeof(float);
  return {acc, max, max + Workspace::piece_bytes<float>(num_rows) / sizeof(float)};
}

}  // namespace

// One tile for decode; two, if registers allow it, when the heads of a group do not fit one or
// there are rows to fill two.
int DevicePlan::column_tiles(const PagedAttentionParams& p) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  const bool has_more = group > 8 || group * p.num_tokens > 8 * p.num_seqs;
  return p.head_size <= 128 && has_more ? 2 : 1;
}

void DevicePlan::make(const PagedAttentionParams& p, const int32_t* seq_lens,
                      const int32_t* query_start_loc, cudaStream_t stream) {
  const int columns = 8 * column_tiles(p);
  const WorkPlan plan = plan_work(p, seq_lens, query_start_loc, columns, num_blocks_at_once());
  const size_t num_rows = static_cast<size_t>(plan.num_slots) * columns;
  upload(plan, static_cast<int64_t>(plan.items.size()), static_cast<int64_t>(plan.merges.size()),
         stream);
  const size_t bytes = partials_bytes(num_rows, p.head_size);
  partials_memory_.begin(bytes, stream);
  partials_ = cut(partials_memory_.take<char>(bytes), num_rows, p.head_size);
}

void DevicePlan::make_fixed(const PagedAttentionParams& p, const int32_t* seq_lens,
                            const int32_t* query_start_loc, int64_t max_seq_len,
                            LastingMemory& lasting, cudaStream_t stream) {
  for (int64_t i = 0; i < p.num_seqs; ++i) {
    const std::string index = "[" + std::to_string(i) + "]";
    check_range("rows of sequence " + index, query_start_loc[i + 1] - query_start_loc[i], 0, 2);
    check_range("seq_lens" + index, seq_lens[i], 0, max_seq_len + 1);
  }
  const int columns = 8 * column_tiles(p);
  const WorkBounds bounds = bound_work(p, max_seq_len, columns, num_blocks_at_once());
  const WorkPlan plan =
      plan_work(p, seq_lens, query_start_loc, columns, num_blocks_at_once(), bounds.may_split);
  if (num_items_ != 0) check_range("launch", bounds.num_items, num_items_, int64_t{num_items_} + 1);
  upload(plan, bounds.num_items, bounds.num_merges, stream);
  const size_t num_rows = static_cast<size_t>(bounds.num_slots) * columns;
  if (partials_.acc == nullptr) {
    partials_ = cut(lasting.take(partials_bytes(num_rows, p.head_size)), num_rows, p.head_size);
  }
}

void DevicePlan::upload(const WorkPlan& plan, int64_t num_items, int64_t num_merges,
                        cudaStream_t stream) {
  const size_t items_bytes = Workspace::piece_bytes<AttentionItem>(num_items);
  const size_t bytes = items_bytes + Workspace::piece_bytes<AttentionMerge>(num_merges);
  char* host = upload_.begin(bytes);
  auto* items = reinterpret_cast<AttentionItem*>(host);
  auto* merges = reinterpret_cast<AttentionMerge*>(host + items_bytes);
  std::fill(std::copy(plan.items.begin(), plan.items.end(), items), items + num_items,
            AttentionItem{kNoWork, 0, 0, 0, 0, 0});
  std::fill(std::copy(plan.merges.begin(), plan.merges.end(), merges), merges + num_merges,
            AttentionMerge{kNoWork, 0, 0, 0, 0});
  work_.begin(bytes, stream);
  char* device = work_.take<char>(bytes);
  upload_.send(device, bytes, stream);
  items_ = reinterpret_cast<const AttentionItem*>(device);
  merges_ = reinterpret_cast<const AttentionMerge*>(device + items_bytes);
  num_items_ = grid_size(num_items);
  num_merges_ = grid_size(num_merges);
}

}  // namespace quire::cuda
