#include <algorithm>

#include "core/check.h"
#include "cuda/attention/common.h"
#include "cuda/launch.h"

namespace quire::cuda {
namespace {

WorkLimits limits_of(const PagedAttentionParams& p) {
  const int columns = 8 * DevicePlan::column_tiles(p);
  return {columns, attention_mma_blocks(p), PartialMemory::max_columns(p.head_size) / columns};
}

}  // namespace

// One tile for decode; two, if registers allow it, when the heads of a group do not fit one or
// there are rows to fill two.
int DevicePlan::column_tiles(const PagedAttentionParams& p) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  const bool has_more = group > 8 || group * p.num_tokens > 8 * p.num_seqs;
  return p.head_size <= 128 && has_more ? 2 : 1;
}

PartialResults PartialMemory::get(int64_t head_size) {
  const int64_t columns = max_columns(head_size);
  auto* acc = memory_.get<float>();
  float* max = acc + columns * head_size;
  return {acc, max, max + columns};
}

void DevicePlan::make(const PagedAttentionParams& p, const int32_t* seq_lens,
                      const int32_t* query_start_loc, cudaStream_t stream) {
  const WorkPlan plan = plan_work(p, seq_lens, query_start_loc, limits_of(p));
  upload(plan, static_cast<int64_t>(plan.items.size()), static_cast<int64_t>(plan.merges.size()),
         stream);
  partials_ = of_stream<PartialMemory>(stream).get(p.head_size);
}

void DevicePlan::make_fixed(const PagedAttentionParams& p, const int32_t* seq_lens,
                            const int32_t* query_start_loc, int64_t max_seq_len,
                            cudaStream_t stream) {
  for (int64_t i = 0; i < p.num_seqs; ++i) {
    const std::string index = "[" + std::to_string(i) + "]";
    check_range("rows of sequence " + index, query_start_loc[i + 1] - query_start_loc[i], 0, 2);
    check_range("seq_lens" + index, seq_lens[i], 0, max_seq_len + 1);
  }
  const WorkLimits limits = limits_of(p);
  const WorkBounds bounds = bound_work(p, limits);
  if (num_items_ != 0) check_range("launch", bounds.num_items, num_items_, int64_t{num_items_} + 1);
  upload(plan_work(p, seq_lens, query_start_loc, limits), bounds.num_items, bounds.num_merges,
         stream);
  partials_ = of_stream<PartialMemory>(stream).get(p.head_size);
}

void DevicePlan::upload(const WorkPlan& plan, int64_t num_items, int64_t num_merges,
                        cudaStream_t stream) {
  const size_t items_bytes = Workspace::piece_bytes<AttentionItem>(num_items);
  const size_t bytes = items_bytes + Workspace::piece_bytes<AttentionMerge>(num_merges);
  char* host = upload_.begin(bytes);
  auto* items = reinterpret_cast<AttentionItem*>(host);
  auto* merges = reinterpret_cast<AttentionMerge*>(host + items_bytes);
  std::fill(std::copy(plan.items.begin(), plan.items.end(), items), items + num_items,
            AttentionItem{kNoWork, 0, 0, 0, 0, 0, 0});
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
