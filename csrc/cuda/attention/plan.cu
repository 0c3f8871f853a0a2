#include <algorithm>

#include "cuda/attention/common.h"
#include "cuda/attention/plan.h"

namespace quire::cuda {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Calls body(seq, column, first partition, end of partitions) for each tile of columns.
template <typename Body>
void for_each_tile(const PagedAttentionParams& p, const int32_t* seq_lens,
                   const int32_t* query_start_loc, int columns, const Body& body) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  for (int64_t seq = 0; seq < p.num_seqs; ++seq) {
    const int64_t num_rows = query_start_loc[seq + 1] - query_start_loc[seq];
    const int64_t first_position = seq_lens[seq] - num_rows;
    const int64_t num_columns = num_rows * group;
    for (int64_t column = 0; column < num_columns; column += columns) {
      const int64_t first_row = column / group;
      const int64_t last_row = (std::min(column + columns, num_columns) - 1) / group;
      const int64_t keys_end = first_position + last_row + 1;
      const int64_t first_key = first_position + first_row + 1 - p.sliding_window;
      body(seq, column, std::max<int64_t>(first_key, 0) / kPartitionTokens,
           ceil_div(keys_end, kPartitionTokens));
    }
  }
}

}  // namespace

WorkPlan plan_work(const PagedAttentionParams& p, const int32_t* seq_lens,
                   const int32_t* query_start_loc, int columns, int num_blocks_at_once,
                   bool may_split) {
  int64_t num_tiles = 0;
  int64_t num_partitions = 0;
  for_each_tile(p, seq_lens, query_start_loc, columns,
                [&](int64_t, int64_t, int64_t begin, int64_t end) {
                  num_tiles += p.num_kv_heads;
                  num_partitions += (end - begin) * p.num_kv_heads;
                });
  // With blocks enough, splitting costs more than it gains.
  const bool splits = may_split && num_tiles < num_blocks_at_once;
  const int64_t share =
      splits ? std::max<int64_t>(1, ceil_div(num_partitions, num_blocks_at_once)) : INT32_MAX;

  WorkPlan plan;
  for_each_tile(
      p, seq_lens, query_start_loc, columns,
      [&](int64_t seq, int64_t column, int64_t begin, int64_t end) {
        const bool is_split = end - begin > share;
        for (int32_t kv_head = 0; kv_head < p.num_kv_heads; ++kv_head) {
          const auto first_slot = static_cast<int32_t>(plan.num_slots);
          for (int64_t from = begin; from < end; from += share) {
            const int64_t to = std::min(from + share, end);
            plan.items.push_back({static_cast<int32_t>(seq), kv_head, static_cast<int32_t>(column),
                                  static_cast<int32_t>(from), static_cast<int32_t>(to),
                                  is_split ? first_slot + static_cast<int32_t>(from - begin) : -1});
          }
          if (!is_split) continue;
          plan.merges.push_back({static_cast<int32_t>(seq), kv_head, static_cast<int32_t>(column),
                                 first_slot, static_cast<int32_t>(end - begin)});
          plan.num_slots += end - begin;
        }
      });
  std::stable_sort(
      plan.items.begin(), plan.items.end(), [](const AttentionItem& a, const AttentionItem& b) {
        return a.partition_end - a.partition_begin > b.partition_end - b.partition_begin;
      });
  return plan;
}

WorkBounds bound_work(const PagedAttentionParams& p, int64_t max_seq_len, int columns,
                      int num_blocks_at_once) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  const int64_t num_tiles = p.num_seqs * p.num_kv_heads * ceil_div(group, columns);
  if (num_tiles >= num_blocks_at_once) return {num_tiles, 0, 0, false};
  // All pieces of a tile but the last are whole shares; there are as many shares as blocks.
  return {num_tiles + num_blocks_at_once, num_tiles,
          num_tiles * ceil_div(max_seq_len, kPartitionTokens), true};
}

}  // namespace quire::cuda
