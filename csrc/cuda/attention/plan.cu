#include <algorithm>

#include "cuda/attention/common.h"
#include "cuda/attention/plan.h"

namespace quire::cuda {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

std::vector<WorkTile> tiles_of(const PagedAttentionParams& p, const int32_t* seq_lens,
                               const int32_t* query_start_loc, const WorkLimits& limits,
                               const std::vector<int32_t>& num_shared) {
  const int columns = limits.columns;
  const int64_t group = p.num_heads / p.num_kv_heads;
  std::vector<WorkTile> tiles;
  for (int64_t seq = 0; seq < p.num_seqs; ++seq) {
    const int64_t num_rows = query_start_loc[seq + 1] - query_start_loc[seq];
    const int64_t first_position = seq_lens[seq] - num_rows;
    const int64_t num_columns = num_rows * group;
    if (num_columns < limits.from || num_columns >= limits.until) continue;
    const int64_t shared = num_shared.empty() ? 0 : num_shared[seq];
    for (int64_t column = 0; column < num_columns; column += columns) {
      const int64_t first_row = column / group;
      const int64_t last_row = (std::min(column + columns, num_columns) - 1) / group;
      const int64_t keys_end = first_position + last_row + 1;
      const int64_t first_key = first_position + first_row + 1 - p.sliding_window;
      tiles.push_back({static_cast<int32_t>(seq), static_cast<int32_t>(column),
                       std::max(std::max<int64_t>(first_key, 0) / kPartitionTokens, shared),
                       ceil_div(keys_end, kPartitionTokens)});
    }
  }
  return tiles;
}

// Work that is laid end to end and cut into shares, one for each block that runs at once.
class Shares {
 public:
  explicit Shares(int64_t share) : share_(std::max<int64_t>(share, 1)), left_(share_) {}

  int64_t share() const { return share_; }

  // What is left of the share that is being filled.
  int64_t left() const { return left_; }

  // Whether so much work goes into the share, which a little may overfill.
  bool takes_whole(int64_t length) const { return length <= left_ || 8 * length <= share_; }

  void add(const AttentionItem& item) {
    items_.push_back({item, 0});
    left_ -= length_of(item);
    if (left_ > 0) return;
    end_share();
    left_ += share_;  // what was too much is missing from the next
  }

  // Work that is in no share.
  void add_beside(const AttentionItem& item) { beside_.push_back({item, 0}); }

  // All work by the time at which its share comes to it. Started in this order, each piece where
  // another has ended, blocks keep to the shares if all are as fast as each other; of a share, and
  // of what starts together, the longest comes first, which is best if they are not.
  std::vector<AttentionItem> in_order() {
    end_share();
    items_.insert(items_.end(), beside_.begin(), beside_.end());
    std::stable_sort(items_.begin(), items_.end(), [](const Timed& a, const Timed& b) {
      return a.start != b.start ? a.start < b.start : length_of(a.item) > length_of(b.item);
    });
    std::vector<AttentionItem> items;
    items.reserve(items_.size());
    for (const Timed& each : items_) items.push_back(each.item);
    return items;
  }

 private:
  struct Timed {
    AttentionItem item;
    int64_t start;
  };

  static int64_t length_of(const AttentionItem& item) {
    return item.partition_end - item.partition_begin;
  }

  void end_share() {
    const auto first = items_.begin() + first_of_share_;
    std::stable_sort(first, items_.end(), [](const Timed& a, const Timed& b) {
      return length_of(a.item) > length_of(b.item);
    });
    int64_t start = 0;
    for (auto each = first; each != items_.end(); ++each) {
      each->start = start;
      start += length_of(each->item);
    }
    first_of_share_ = static_cast<int64_t>(items_.size());
  }

  int64_t share_;
  int64_t left_;
  std::vector<Timed> items_;
  std::vector<Timed> beside_;
  int64_t first_of_share_ = 0;
};

}  // namespace

WorkPlan plan_work(const PagedAttentionParams& p, const int32_t* seq_lens,
                   const int32_t* query_start_loc, const WorkLimits& limits,
                   const std::vector<int32_t>& num_shared) {
  return plan_tiles(tiles_of(p, seq_lens, query_start_loc, limits, num_shared), p.num_kv_heads,
                    limits);
}

WorkPlan plan_tiles(const std::vector<WorkTile>& tiles, int64_t num_kv_heads,
                    const WorkLimits& limits) {
  int64_t num_partitions = 0;
  for (const WorkTile& tile : tiles) num_partitions += (tile.end - tile.begin) * num_kv_heads;
  Shares shares(ceil_div(num_partitions, limits.blocks_at_once));
  WorkPlan plan;
  plan.num_slots = limits.first_slot;
  for (const WorkTile& tile : tiles) {
    const int64_t begin = tile.begin;
    const int64_t length = tile.end - begin;
    for (int32_t kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
      const auto piece = [&](int64_t from, int64_t to, int64_t slot, bool is_prefix) {
        AttentionItem item{};
        item.seq = tile.seq;
        item.kv_head = kv_head;
        item.column = tile.column;
        item.partition_begin = static_cast<int32_t>(from);
        item.partition_end = static_cast<int32_t>(to);
        item.slot = static_cast<int32_t>(slot);
        item.is_prefix = static_cast<int32_t>(is_prefix);
        return item;
      };
      const auto add_merge = [&](int64_t num_slots) {
        plan.merges.push_back({tile.seq, kv_head, tile.column, static_cast<int32_t>(plan.num_slots),
                               static_cast<int32_t>(num_slots)});
        plan.num_slots += num_slots;
      };
      const auto whole = [&] {
        return piece(begin, tile.end, limits.keeps_slots ? plan.num_slots : -1, limits.keeps_slots);
      };
      if (shares.takes_whole(length)) {
        shares.add(whole());
        if (limits.keeps_slots) add_merge(1);
        continue;
      }
      // Of the pieces the largest is the prefix, for which one slot does.
      const int64_t second = std::min(length - shares.left(), shares.share());
      const int64_t prefix = std::max(shares.left(), second);
      const int64_t num_slots = 1 + length - prefix;
      if (plan.num_slots + num_slots > limits.max_slots) {
        shares.add_beside(whole());
        if (limits.keeps_slots) add_merge(1);
        continue;
      }
      int64_t from = begin + prefix;  // of the next piece that is not the prefix
      bool has_prefix = false;
      for (int64_t cut = 0; cut < length;) {
        const int64_t size = std::min(shares.left(), length - cut);
        cut += size;
        if (!has_prefix && size == prefix) {
          has_prefix = true;
          shares.add(piece(begin, begin + prefix, plan.num_slots, true));
        } else {
          const int64_t slot = plan.num_slots + 1 + from - (begin + prefix);
          shares.add(piece(from, from + size, slot, false));
          from += size;
        }
      }
      add_merge(num_slots);
    }
  }
  plan.items = shares.in_order();
  return plan;
}

WorkBounds bound_work(const PagedAttentionParams& p, const WorkLimits& limits) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  const int64_t num_columns = (p.max_query_len > 1 ? p.num_tokens : p.num_seqs) * group;
  // Sequences that are not left out, and tiles of each: that of its last columns may not be full.
  const int64_t num_seqs =
      std::min<int64_t>(p.num_seqs, num_columns / std::max<int64_t>(limits.from, group));
  const int64_t of_each = std::min<int64_t>(p.max_query_len * group, limits.until - 1);
  const int64_t num_tiles =
      p.num_kv_heads * std::min(num_seqs * ceil_div(of_each, limits.columns),
                                (num_columns + num_seqs * (limits.columns - 1)) / limits.columns);
  // A cut ends a share, of which there are as many as blocks; a tile that is cut has one at least.
  return {num_tiles + limits.blocks_at_once, std::min<int64_t>(num_tiles, limits.blocks_at_once)};
}

int64_t size_of_launch(int64_t num_items, int64_t blocks_at_once) {
  int64_t size = num_items > 0 ? blocks_at_once : 0;
  while (size < num_items) size *= 2;
  return size;
}

WorkBounds size_of_launch(const WorkPlan& plan, const WorkBounds& bounds, int64_t blocks_at_once) {
  if (plan.items.empty()) return {};
  // A merge of prompts has a block for each of 128 columns, and often there are few.
  const int64_t few = ceil_div(bounds.num_merges, 8);
  const auto num_merges = static_cast<int64_t>(plan.merges.size());
  const int64_t num_items = size_of_launch(static_cast<int64_t>(plan.items.size()), blocks_at_once);
  return {std::min(num_items, bounds.num_items), num_merges <= few ? few : bounds.num_merges};
}

}  // namespace quire::cuda
