#include <algorithm>
#include <utility>

#include "cuda/attention/common.h"
#include "cuda/attention/sharing.h"

namespace quire::cuda {
namespace {

// With fewer a tile of keys costs a block of many columns more than it saves.
constexpr int64_t kLeastSequences = 4;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// The sequences that may share, those with a common beginning beside each other.
class Candidates {
 public:
  Candidates(const PagedAttentionParams& p, const int32_t* seq_lens, const int32_t* query_start_loc)
      : blocks_(kPartitionTokens / p.block_size) {
    for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
      const int64_t length = seq_lens[seq];
      const int64_t partitions = (length - 1) / kPartitionTokens;
      if (query_start_loc[seq + 1] - query_start_loc[seq] != 1) continue;
      if (length > p.sliding_window || partitions < 1) continue;
      const int64_t row = p.table_rows != nullptr ? p.table_rows[seq] : seq;
      all_.push_back({seq, p.block_tables + row * p.block_table_stride, partitions});
    }
    // By the last block of each partition: with a prefix cache it determines all before it.
    std::sort(all_.begin(), all_.end(), [this](const Candidate& a, const Candidate& b) {
      const int64_t common = std::min(a.partitions, b.partitions);
      for (int64_t i = 0; i < common; ++i) {
        if (last_block(a, i) != last_block(b, i)) return last_block(a, i) < last_block(b, i);
      }
      return a.partitions != b.partitions ? a.partitions < b.partitions : a.seq < b.seq;
    });
    for (size_t i = 1; i < all_.size(); ++i) common_.push_back(common(all_[i - 1], all_[i]));
  }

  int64_t size() const { return static_cast<int64_t>(all_.size()); }

  // Appends the best groups of candidates [begin, end); returns the partitions that they save.
  int64_t group(int64_t begin, int64_t end, std::vector<SharingGroup>& groups) const {
    if (end - begin < kLeastSequences) return 0;
    // Between those beside each other.
    const auto between = common_.begin() + begin;
    const int64_t least = *std::min_element(between, between + (end - begin - 1));
    // All as one, or those apart that have more in common.
    const size_t before = groups.size();
    int64_t saved = 0;
    if (std::any_of(between, between + (end - begin - 1),
                    [least](int64_t each) { return each > least; })) {
      for (int64_t first = begin, next = begin + 1; next <= end; ++next) {
        if (next < end && common_[next - 1] > least) continue;
        saved += group(first, next, groups);
        first = next;
      }
    }
    const int64_t of_all = (end - begin - 1) * least;
    if (of_all == 0 || of_all < saved) return saved;
    groups.resize(before);
    groups.push_back({{}, least});
    for (int64_t i = begin; i < end; ++i) groups.back().seqs.push_back(all_[i].seq);
    return of_all;
  }

 private:
  struct Candidate {
    int32_t seq;
    const int32_t* table;
    int64_t partitions;
  };

  int32_t last_block(const Candidate& candidate, int64_t partition) const {
    return candidate.table[(partition + 1) * blocks_ - 1];
  }

  // The first partitions of two that lie in the same blocks.
  int64_t common(const Candidate& a, const Candidate& b) const {
    const int64_t most = std::min(a.partitions, b.partitions);
    int64_t count = 0;
    while (count < most && last_block(a, count) == last_block(b, count)) ++count;
    const int32_t* end = a.table + count * blocks_;
    return (std::mismatch(a.table, end, b.table).first - a.table) / blocks_;
  }

  int64_t blocks_;  // of a partition
  std::vector<Candidate> all_;
  std::vector<int64_t> common_;
};

// The sequences of a tile: as many as its columns take, or half of that if all partitions of those
// tiles run at once; blocks with half of their columns are sooner done.
int64_t sequences_of_tile(const std::vector<SharingGroup>& groups, int64_t group,
                          int64_t num_kv_heads, const WorkLimits& limits) {
  const int64_t half = limits.columns / 2 / group;
  if (half < kLeastSequences) return limits.columns / group;
  int64_t blocks = 0;
  for (const SharingGroup& each : groups) {
    blocks +=
        each.num_partitions * ceil_div(static_cast<int64_t>(each.seqs.size()), half) * num_kv_heads;
  }
  const bool run_at_once = blocks <= std::min<int64_t>(limits.blocks_at_once, limits.max_slots);
  return run_at_once ? half : limits.columns / group;
}

}  // namespace

std::vector<SharingGroup> find_sharing(const PagedAttentionParams& p, const int32_t* seq_lens,
                                       const int32_t* query_start_loc) {
  std::vector<SharingGroup> groups;
  if (p.block_tables == nullptr || p.num_seqs < kLeastSequences) return groups;
  const Candidates candidates(p, seq_lens, query_start_loc);
  candidates.group(0, candidates.size(), groups);
  return groups;
}

SharedPlan plan_shared(const PagedAttentionParams& p, const std::vector<SharingGroup>& groups,
                       const WorkLimits& limits, int other_blocks) {
  SharedPlan plan;
  const int64_t group = p.num_heads / p.num_kv_heads;
  if (limits.columns / group < kLeastSequences) return plan;
  const int64_t seqs_of_tile = sequences_of_tile(groups, group, p.num_kv_heads, limits);
  plan.columns = limits.columns;
  plan.num_kv_heads = p.num_kv_heads;
  plan.places.resize(p.num_seqs);
  std::vector<int32_t> num_shared(p.num_seqs);
  std::vector<WorkTile> tiles;
  std::vector<SharedItem> members;  // of each tile
  int64_t room = limits.max_slots;
  int64_t shared = 0;
  int64_t unshared = 0;
  for (const SharingGroup& each : groups) {
    const auto num_seqs = static_cast<int64_t>(each.seqs.size());
    const int64_t num_tiles = ceil_div(num_seqs, seqs_of_tile) * p.num_kv_heads;
    const int64_t partitions = std::min(each.num_partitions, room / num_tiles);
    if (partitions == 0) continue;
    room -= partitions * num_tiles;
    shared += partitions * num_tiles;
    unshared += partitions * num_seqs * p.num_kv_heads;
    for (int64_t first = 0; first < num_seqs; first += seqs_of_tile) {
      const int64_t end = std::min(first + seqs_of_tile, num_seqs);
      SharedItem item{};
      item.first_member = static_cast<int32_t>(plan.members.size());
      item.num_members = static_cast<int32_t>(end - first);
      for (int64_t i = first; i < end; ++i) {
        const int32_t seq = each.seqs[i];
        plan.members.push_back(seq);
        plan.places[seq] = {static_cast<int64_t>(tiles.size()),
                            static_cast<int32_t>((i - first) * group)};
        num_shared[seq] = static_cast<int32_t>(partitions);
      }
      // The number of the tile stands in for a sequence until all is planned.
      tiles.push_back({static_cast<int32_t>(tiles.size()), 0, 0, partitions});
      members.push_back(item);
    }
  }
  const int64_t rounds = ceil_div(shared, limits.blocks_at_once);
  if (shared == 0 || unshared < rounds * other_blocks) return SharedPlan{};
  WorkLimits of_tiles = limits;
  of_tiles.keeps_slots = true;
  WorkPlan work = plan_tiles(tiles, p.num_kv_heads, of_tiles);
  for (const AttentionItem& each : work.items) {
    SharedItem item = members[each.seq];
    static_cast<AttentionItem&>(item) = each;
    item.seq = plan.members[item.first_member];
    plan.items.push_back(item);
  }
  plan.slots = std::move(work.merges);
  plan.num_slots = work.num_slots;
  plan.num_shared = std::move(num_shared);
  return plan;
}

int64_t bound_shared(const PagedAttentionParams& p, const WorkLimits& limits) {
  const int64_t seqs_of_tile = limits.columns / (p.num_heads / p.num_kv_heads);
  // Tiles that are full, and one of each group that is not.
  const int64_t num_tiles =
      p.num_seqs / std::max<int64_t>(seqs_of_tile, 1) + p.num_seqs / kLeastSequences;
  // A cut ends a share, of which there are as many as blocks.
  return num_tiles * p.num_kv_heads + limits.blocks_at_once;
}

void SharedPlan::begin_behind(WorkPlan& rest) const {
  if (num_shared.empty()) return;
  for (AttentionItem& item : rest.items) {
    if (num_shared[item.seq] == 0 || item.partition_begin != num_shared[item.seq]) continue;
    const Place& place = places[item.seq];
    const AttentionMerge& of_tile = slots[place.tile * num_kv_heads + item.kv_head];
    item.num_shared = of_tile.num_slots;
    item.shared_row = of_tile.slot * columns + place.column + item.column;
    item.shared_columns = columns;
  }
}

}  // namespace quire::cuda
