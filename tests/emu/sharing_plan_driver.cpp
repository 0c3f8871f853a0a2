// Prints what sequences of steps share and how it is planned, for test_sharing_plan.py.
//
// A step is a line: kv heads, query heads of each, window (0: none), tokens of a block, columns and
// blocks at once of the shared launch and of the rest, most slots of the first, sequences, and for
// each of these its tokens, its rows and its blocks. A plan is a line: nanoseconds, the most
// shared items there can be, groups, shared items, items of the rest; then all numbers of each.
#include <chrono>
#include <cstdint>
#include <iostream>
#include <limits>
#include <vector>

#include "cuda/attention/plan.cu"
#include "cuda/attention/sharing.h"

int main() {
  using namespace quire;
  std::ios::sync_with_stdio(false);
  int64_t window = 0;
  int64_t group = 0;
  PagedAttentionParams p{};
  cuda::WorkLimits of_shared{};
  cuda::WorkLimits limits{};
  while (std::cin >> p.num_kv_heads >> group >> window >> p.block_size >> of_shared.columns >>
         of_shared.blocks_at_once >> limits.columns >> limits.blocks_at_once >>
         of_shared.max_slots >> p.num_seqs) {
    p.num_heads = p.num_kv_heads * group;
    p.sliding_window = window > 0 ? window : std::numeric_limits<int64_t>::max();
    std::vector<int32_t> seq_lens(p.num_seqs);
    std::vector<int32_t> query_start_loc(p.num_seqs + 1);
    std::vector<std::vector<int32_t>> tables(p.num_seqs);
    for (int64_t i = 0; i < p.num_seqs; ++i) {
      int32_t rows = 0;
      std::cin >> seq_lens[i] >> rows;
      query_start_loc[i + 1] = query_start_loc[i] + rows;
      tables[i].resize((seq_lens[i] + p.block_size - 1) / p.block_size);
      for (int32_t& block : tables[i]) std::cin >> block;
      p.block_table_stride =
          std::max<int64_t>(p.block_table_stride, static_cast<int64_t>(tables[i].size()));
    }
    // The last sequence's table comes first.
    std::vector<int32_t> flat(p.num_seqs * p.block_table_stride, -1);
    std::vector<int64_t> rows(p.num_seqs);
    for (int64_t i = 0; i < p.num_seqs; ++i) {
      rows[i] = p.num_seqs - 1 - i;
      std::copy(tables[i].begin(), tables[i].end(), flat.begin() + rows[i] * p.block_table_stride);
    }
    p.block_tables = flat.data();
    p.table_rows = rows.data();

    const auto began = std::chrono::steady_clock::now();
    const auto groups = cuda::find_sharing(p, seq_lens.data(), query_start_loc.data());
    const cuda::SharedPlan shared = plan_shared(p, groups, of_shared, limits.blocks_at_once);
    const auto ended = std::chrono::steady_clock::now();
    limits.max_slots = INT32_MAX;
    limits.first_slot =
        (shared.num_slots * of_shared.columns + limits.columns - 1) / limits.columns;
    cuda::WorkPlan rest =
        plan_work(p, seq_lens.data(), query_start_loc.data(), limits, shared.num_shared);
    shared.begin_behind(rest);

    std::cout << std::chrono::duration_cast<std::chrono::nanoseconds>(ended - began).count() << ' '
              << bound_shared(p, of_shared) << ' ' << groups.size() << ' ' << shared.items.size()
              << ' ' << rest.items.size();
    for (const cuda::SharingGroup& each : groups) {
      std::cout << ' ' << each.num_partitions << ' ' << each.seqs.size();
      for (const int32_t seq : each.seqs) std::cout << ' ' << seq;
    }
    for (const cuda::SharedItem& item : shared.items) {
      std::cout << ' ' << item.seq << ' ' << item.kv_head << ' ' << item.partition_begin << ' '
                << item.partition_end << ' ' << item.slot << ' ' << item.is_prefix << ' '
                << item.num_members;
      for (int i = 0; i < item.num_members; ++i)
        std::cout << ' ' << shared.members[item.first_member + i];
    }
    for (const cuda::AttentionItem& item : rest.items) {
      std::cout << ' ' << item.seq << ' ' << item.kv_head << ' ' << item.column << ' '
                << item.partition_begin << ' ' << item.partition_end << ' ' << item.slot << ' '
                << item.num_shared << ' ' << item.shared_row << ' ' << item.shared_columns;
    }
    std::cout << '\n';
  }
}
