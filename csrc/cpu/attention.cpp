// Paged attention: cuts the attention of a step into work items for the kernel of the instruction
// set. The cut is free: results do not depend on it (cpu/kernels/attention.h).
#include "ops/attention.h"

#include <algorithm>
#include <vector>

#include "cpu/cpu_ops.h"

namespace quire::cpu {
namespace {

// Query rows (tokens x heads of a group) that share a tile of keys while it is in the first-level
// cache.
constexpr int64_t kRowsPerItem = 64;

// Keys read times rows: what an item costs, up to a factor.
int64_t cost_of(const PagedAttentionParams& p, const AttentionItem& item) {
  const int64_t query_len = p.query_start_loc[item.seq + 1] - p.query_start_loc[item.seq];
  const int64_t keys = p.seq_lens[item.seq] - query_len + item.row_end;
  return std::min(keys, p.sliding_window) * (item.row_end - item.row_begin) *
         (item.head_end - item.head_begin);
}

// Items in the order in which threads should take them: most work first.
std::vector<AttentionItem> make_items(const PagedAttentionParams& p, int num_threads) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  const int64_t tokens_per_item = std::max<int64_t>(1, kRowsPerItem / group);
  const auto tokens_of = [&](int64_t seq) {
    return p.query_start_loc[seq + 1] - p.query_start_loc[seq];
  };

  // One thread that walks all kv heads of a block reads memory in long runs, which is fastest for
  // decode; but there must be items enough to keep every thread busy to the end.
  int64_t decodes = 0;
  for (int64_t seq = 0; seq < p.num_seqs; ++seq) decodes += tokens_of(seq) == 1;
  const int64_t wanted = std::max<int64_t>(1, 4 * num_threads / std::max<int64_t>(1, decodes));
  const int64_t head_runs = num_threads == 1 ? 1 : std::min(p.num_kv_heads, wanted);
  const int64_t decode_heads = (p.num_kv_heads + head_runs - 1) / head_runs;

  std::vector<AttentionItem> items;
  for (int64_t seq = 0; seq < p.num_seqs; ++seq) {
    const int64_t tokens = tokens_of(seq);
    const int64_t heads = tokens == 1 ? decode_heads : 1;
    for (int64_t row = 0; row < tokens; row += tokens_per_item) {
      for (int64_t head = 0; head < p.num_kv_heads; head += heads) {
        items.push_back({static_cast<int32_t>(seq), static_cast<int32_t>(row),
                         static_cast<int32_t>(std::min(row + tokens_per_item, tokens)),
                         static_cast<int32_t>(head),
                         static_cast<int32_t>(std::min(head + heads, p.num_kv_heads))});
      }
    }
  }
  std::stable_sort(items.begin(), items.end(), [&](const AttentionItem& a, const AttentionItem& b) {
    return cost_of(p, a) > cost_of(p, b);
  });
  return items;
}

}  // namespace

// Each call makes its own items: that takes a few microseconds.
void paged_attention(const PagedAttentionParams& p, const KernelTable& kernels, ThreadPool& pool) {
  const std::vector<AttentionItem> items = make_items(p, pool.num_threads());
  kernels.attend(p, items.data(), static_cast<int64_t>(items.size()), pool);
}

}  // namespace quire::cpu
