// Prints the plans of attention for steps that are read from standard input, for test_plan.py.
//
// A step is a line: kv heads, query heads of each, columns of a block, window (0: none), blocks at
// once, most slots, fewest columns of a sequence and what all are below, rows and sequences of a
// captured launch, the most rows of one, sequences, and for each of these its tokens and its rows.
// A plan is a line: items, merges, slots, bounded items and merges, those of a captured launch of
// few sizes, then all numbers of each item and each merge.
#include <cstdint>
#include <iostream>
#include <limits>
#include <vector>

#include "cuda/attention/plan.cu"

int main() {
  using namespace quire;
  std::ios::sync_with_stdio(false);
  int64_t window = 0;
  int64_t group = 0;
  int64_t most_seqs = 0;
  PagedAttentionParams p{};
  cuda::WorkLimits limits{};
  while (std::cin >> p.num_kv_heads >> group >> limits.columns >> window >> limits.blocks_at_once >>
         limits.max_slots >> limits.from >> limits.until >> p.num_tokens >> most_seqs >>
         p.max_query_len >> p.num_seqs) {
    p.num_heads = p.num_kv_heads * group;
    p.sliding_window = window > 0 ? window : std::numeric_limits<int64_t>::max();
    std::vector<int32_t> seq_lens(p.num_seqs);
    std::vector<int32_t> query_start_loc(p.num_seqs + 1);
    for (int64_t i = 0; i < p.num_seqs; ++i) {
      int32_t rows = 0;
      std::cin >> seq_lens[i] >> rows;
      query_start_loc[i + 1] = query_start_loc[i] + rows;
    }
    const cuda::WorkPlan plan = plan_work(p, seq_lens.data(), query_start_loc.data(), limits);
    p.num_seqs = most_seqs;
    const cuda::WorkBounds bounds = bound_work(p, limits);
    const cuda::WorkBounds size = size_of_launch(plan, bounds, limits.blocks_at_once);
    std::cout << plan.items.size() << ' ' << plan.merges.size() << ' ' << plan.num_slots << ' '
              << bounds.num_items << ' ' << bounds.num_merges << ' ' << size.num_items << ' '
              << size.num_merges;
    for (const cuda::AttentionItem& item : plan.items) {
      std::cout << ' ' << item.seq << ' ' << item.kv_head << ' ' << item.column << ' '
                << item.partition_begin << ' ' << item.partition_end << ' ' << item.slot << ' '
                << item.is_prefix;
    }
    for (const cuda::AttentionMerge& merge : plan.merges) {
      std::cout << ' ' << merge.seq << ' ' << merge.kv_head << ' ' << merge.column << ' '
                << merge.slot << ' ' << merge.num_slots;
    }
    std::cout << '\n';
  }
}
