// Paged attention: one definition for decode, prefill and chunks.
//
// A query row at position p sees keys [max(0, p + 1 - window), p + 1). Positions are cut into
// partitions of 512 and those into tiles, both at absolute positions:
//
//   0           512          1024                 p
//   |  .  .  .  |  .  .  .  |  .  .  |           a row's keys end here, in the middle of a tile
//
// Within a partition the row goes tile by tile through an online softmax (maximum m, sum l,
// accumulator acc); partitions are merged in order by one formula, a sink behind the last. Which
// rows, heads or sequences share a work item, how blocks lie in memory and where a chunk began are
// nowhere in that arithmetic, so they cannot change a bit of the result.
//
// A key that one row of an item may not see and another may is computed with probability zero for
// the former: its value must be finite. Slots that no row of the item sees are never read.
#pragma once

#include "cpu/kernel_table.h"
#include "cpu/kernels/attention_fp32.h"
#include "cpu/kernels/attention_softmax.h"
#include "cpu/kernels/int8_rows.h"
#include "ops/attention.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr int64_t kPartitionTokens = 512;
constexpr int kMaxTileTokens = 64;

template <typename Tile>
class AttentionTask {
 public:
  using T = typename Tile::T;
  using Cached = typename Tile::Cached;
  static constexpr bool kIsScaled = sizeof(Cached) == 1;
  static constexpr int kTokens = Tile::kTokens;

  // `following`, unless null, is an item that will soon be computed, on whatever thread.
  AttentionTask(const PagedAttentionParams& params, const AttentionItem& item,
                const AttentionItem* following, void* scratch)
      : p_(params), item_(item), following_(following), arena_(scratch) {
    group_ = p_.num_heads / p_.num_kv_heads;
    rows_ = (item.row_end - item.row_begin) * group_;
    heads_ = item.head_end - item.head_begin;
    columns_ = Tile::columns(p_.value_size);
    query_columns_ = Tile::query_columns(p_.head_size);
    first_token_ = p_.query_start_loc[item.seq] + item.row_begin;
    first_position_ = position_of(item, item.row_begin);
    keys_begin_ = row_keys_begin(0);
    keys_end_ = row_keys_end(rows_ - 1);
    block_shift_ = __builtin_ctzll(static_cast<uint64_t>(p_.block_size));

    query_ = arena_.take<typename Tile::Query>(heads_ * rows_ * query_columns_);
    scores_ = arena_.take<float>(rows_ * kTokens);
    tile_ = arena_.take<char>(Tile::tile_bytes(max_of(p_.head_size, p_.value_size)));
    zero_row_ = arena_.take<char>(kZeroRowBytes);
    scales_ = {arena_.take<float>(kTokens), arena_.take<float>(kTokens)};
    states_ = arena_.take<SoftmaxState>(heads_);
    totals_ = arena_.take<SoftmaxState>(heads_);
    for (int64_t h = 0; h < heads_; ++h) {
      const SoftmaxState state = SoftmaxState::take(arena_, rows_, columns_);
      const SoftmaxState total = SoftmaxState::take(arena_, rows_, columns_);
      if (scratch == nullptr) continue;
      states_[h] = state;
      totals_[h] = total;
    }
  }

  // Bytes of scratch that `item` needs.
  static int64_t scratch_bytes(const PagedAttentionParams& params, const AttentionItem& item) {
    return AttentionTask(params, item, nullptr, nullptr).arena_.used();
  }

  void run() {
    memset(zero_row_, 0, kZeroRowBytes);
    for (int64_t h = 0; h < heads_; ++h) {
      pack_query(h);
      totals_[h].reset(rows_, columns_);
    }
    load_tile_rows(item_, tile_begin_of(keys_begin_), keys_begin_, keys_end_, next_);
    for (int64_t begin = keys_begin_ / kPartitionTokens * kPartitionTokens; begin < keys_end_;
         begin += kPartitionTokens) {
      walk_partition(begin, min_of(begin + kPartitionTokens, keys_end_));
    }
    for (int64_t h = 0; h < heads_; ++h) write_out(h);
  }

 private:
  static constexpr int64_t kZeroRowBytes =
      kMaxHeadSize * static_cast<int64_t>(sizeof(Cached)) + kRowScaleBytes;

  struct TilePointers {
    const char* keys[kMaxTileTokens];
    const char* values[kMaxTileTokens];
    int begin;  // tokens of the tile that some row of the item sees
    int end;
  };

  // Position of query token `token` of the item's sequence.
  int64_t position_of(const AttentionItem& item, int64_t token) const {
    const int64_t query_len = p_.query_start_loc[item.seq + 1] - p_.query_start_loc[item.seq];
    return p_.seq_lens[item.seq] - query_len + token;
  }

  int64_t row_keys_end(int64_t row) const { return first_position_ + row / group_ + 1; }
  int64_t row_keys_begin(int64_t row) const {
    return max_of(0, row_keys_end(row) - p_.sliding_window);
  }
  static int64_t tile_begin_of(int64_t position) { return position / kTokens * kTokens; }

  // A position relative to a tile, from 0 to kTokens.
  static int clip(int64_t position, int64_t tile) {
    return static_cast<int>(min_of(max_of(position - tile, 0), kTokens));
  }

  void pack_query(int64_t head) {
    const int64_t first_head = (item_.head_begin + head) * group_;
    for (int64_t row = 0; row < rows_; ++row) {
      const T* src = static_cast<const T*>(p_.query.data) +
                     (first_token_ + row / group_) * p_.query.token_stride +
                     (first_head + row % group_) * p_.query.head_stride;
      Tile::pack_query(query_ + (head * rows_ + row) * query_columns_, src, p_.head_size);
    }
  }

  // Finds the rows of a tile in the caches, for head 0 of an item that sees keys [begin, end).
  void load_tile_rows(const AttentionItem& item, int64_t tile, int64_t begin, int64_t end,
                      TilePointers& out) const {
    const int32_t* block_table = p_.block_tables + item.seq * p_.block_table_stride;
    out.begin = clip(begin, tile);
    out.end = clip(end, tile);
    const int64_t mask = p_.block_size - 1;
    for (int t = out.begin; t < out.end; ++t) {
      const int64_t block = block_table[(tile + t) >> block_shift_];
      const int64_t offset = (tile + t) & mask;
      out.keys[t] = row_address(p_.key_cache, item, block, offset);
      out.values[t] = row_address(p_.value_cache, item, block, offset);
    }
  }

  // What to prefetch meanwhile: the tile after `tile`, and behind the last one the first of another
  // sequence's item: short sequences have few other tiles.
  void load_next_rows(int64_t tile) {
    if (tile + kTokens < keys_end_) {
      load_tile_rows(item_, tile + kTokens, keys_begin_, keys_end_, next_);
    } else if (following_ != nullptr && following_->seq != item_.seq) {
      const int64_t first = position_of(*following_, following_->row_begin);
      const int64_t begin = max_of(0, first + 1 - p_.sliding_window);
      load_tile_rows(*following_, tile_begin_of(begin), begin,
                     position_of(*following_, following_->row_end), next_);
    } else {
      next_.begin = next_.end = 0;
    }
  }

  const char* row_address(const CacheView& cache, const AttentionItem& item, int64_t block,
                          int64_t offset) const {
    const int64_t elements = block * cache.block_stride + item.head_begin * cache.head_stride +
                             offset * cache.token_stride;
    return static_cast<const char*>(cache.data) + elements * static_cast<int64_t>(sizeof(Cached));
  }

  void walk_partition(int64_t begin, int64_t end) {
    for (int64_t h = 0; h < heads_; ++h) states_[h].reset(rows_, columns_);
    for (int64_t tile = max_of(begin, tile_begin_of(keys_begin_)); tile < end; tile += kTokens) {
      current_ = next_;
      load_next_rows(tile);
      for (int64_t h = 0; h < heads_; ++h) walk_tile(h, tile);
    }
    for (int64_t h = 0; h < heads_; ++h) {
      for (int64_t row = 0; row < rows_; ++row) {
        if (max_of(row_keys_begin(row), begin) < min_of(row_keys_end(row), end)) {
          merge_row(totals_[h], states_[h], row, columns_);
        }
      }
    }
  }

  void walk_tile(int64_t head, int64_t tile) {
    constexpr auto kBytes = static_cast<int64_t>(sizeof(Cached));
    const int64_t key_offset = head * p_.key_cache.head_stride * kBytes;
    const int64_t value_offset = head * p_.value_cache.head_stride * kBytes;
    // Values that are part of their keys come with them.
    const int value_rows_end = p_.value_cache.data == p_.key_cache.data ? next_.begin : next_.end;
    prefetcher_.start({next_.keys, key_offset, next_.begin, next_.end},
                      {next_.values, value_offset, next_.begin, value_rows_end},
                      static_cast<int>(p_.head_size * kBytes + (kIsScaled ? kRowScaleBytes : 0)));
    const TileRows keys{current_.keys, key_offset, current_.begin, current_.end, zero_row_};
    const TileRows values{current_.values, value_offset, current_.begin, current_.end, zero_row_};

    if constexpr (kIsScaled) {
      load_scales(keys, scales_.keys);
      load_scales(values, scales_.values);
    }
    Tile::pack_keys(tile_, keys, prefetcher_, p_.head_size);
    Tile::scores(scores_, query_ + head * rows_ * query_columns_, rows_, tile_, current_.end,
                 prefetcher_, p_.head_size);
    softmax(head, tile);
    Tile::add_values(states_[head].acc, scores_, rows_, values, tile_, prefetcher_, p_.value_size);
    prefetcher_.finish();
  }

  // Zero for tokens that no row sees.
  void load_scales(const TileRows& rows, float* scales) const {
    memset(scales, 0, kTokens * sizeof(float));
    for (int t = rows.begin; t < rows.end; ++t)
      scales[t] = row_scale(rows.at<int8_t>(t), p_.head_size);
  }

  void softmax(int64_t head, int64_t tile) {
    const SoftmaxState& state = states_[head];
    LogitTransform transform{p_.scale, p_.soft_cap, 0.f};
    for (int64_t row = 0; row < rows_; ++row) {
      float* scores = scores_ + row * kTokens;
      const int begin = clip(row_keys_begin(row), tile);
      const int end = clip(row_keys_end(row), tile);
      if (begin >= end) {
        memset(scores, 0, kTokens * sizeof(float));
        continue;
      }
      if (p_.alibi_slopes != nullptr) {
        transform.slope = p_.alibi_slopes[(item_.head_begin + head) * group_ + row % group_];
      }
      const float distance = static_cast<float>(tile - (row_keys_end(row) - 1));
      softmax_row<kTokens, kIsScaled>(scores, begin, end, distance, transform, scales_,
                                      state.max + row, state.sum + row, state.acc + row * columns_,
                                      columns_);
    }
  }

  void write_out(int64_t head) {
    const int64_t first_head = (item_.head_begin + head) * group_;
    for (int64_t row = 0; row < rows_; ++row) {
      if (p_.sinks != nullptr)
        add_sink(totals_[head], p_.sinks[first_head + row % group_], row, columns_);
      T* out = static_cast<T*>(p_.out.data) + (first_token_ + row / group_) * p_.out.token_stride +
               (first_head + row % group_) * p_.out.head_stride;
      Tile::write_row(out, totals_[head].acc + row * columns_, 1.f / totals_[head].sum[row],
                      p_.value_size);
    }
  }

  const PagedAttentionParams& p_;
  const AttentionItem& item_;
  const AttentionItem* following_;
  Arena arena_;
  int64_t group_;           // query heads per kv head
  int64_t rows_;            // (query token, head of the group), tokens outermost
  int64_t heads_;           // kv heads walked together
  int64_t columns_;         // of an accumulator row
  int64_t query_columns_;   // of a packed query row
  int64_t first_token_;     // row of `query` and `out`
  int64_t first_position_;  // its position in the sequence
  int64_t keys_begin_;      // keys that any row sees
  int64_t keys_end_;
  int block_shift_;

  typename Tile::Query* query_;
  float* scores_;  // [rows][kTokens]
  void* tile_;     // packed keys, then packed values
  char* zero_row_;
  TileScales scales_;     // of the current tile
  SoftmaxState* states_;  // [heads], of the current partition
  SoftmaxState* totals_;  // [heads], of all partitions so far
  TilePointers current_;
  TilePointers next_;
  TilePrefetcher prefetcher_;
};

template <typename Tile>
void attend_items(const PagedAttentionParams& p, const AttentionItem* items, int64_t num_items,
                  ThreadPool& pool) {
  const int64_t num_threads = pool.num_threads();
  parallel_for(pool, num_items, [&](int64_t i, int worker) {
    // Items are taken in order, so this one is taken about when the current one ends.
    const AttentionItem* following =
        i + num_threads < num_items ? items + i + num_threads : nullptr;
    void* scratch = pool.scratch(worker, AttentionTask<Tile>::scratch_bytes(p, items[i]));
    AttentionTask<Tile>(p, items[i], following, scratch).run();
  });
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
