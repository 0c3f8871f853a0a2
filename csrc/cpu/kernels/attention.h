// Paged attention: one definition for decode, prefill and chunks.
//
// A query row at position p sees keys [max(0, p + 1 - window), p + 1). Positions are cut into
// partitions of 512 and those into tiles, both at absolute positions:
//
//   0           512          1024                 p
//   |  .  .  .  |  .  .  .  |  .  .  |           a row's keys end here, in the middle of a tile
//
// Within a partition the row goes tile by tile through an online softmax (maximum m, sum l,
// accumulator acc); partitions are merged in order by one formula. Which rows, heads or sequences
// share a work item, how blocks lie in memory and where a chunk began are nowhere in that
// arithmetic, so they cannot change a bit of the result.
//
// A key that one row of an item may not see and another may is computed with probability zero for
// the former: its value must be finite. Slots that no row of the item sees are never read.
#pragma once

#include "cpu/kernel_table.h"
#include "cpu/kernels/attention_fp32.h"
#include "cpu/kernels/int8_rows.h"
#include "cpu/kernels/math.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr int64_t kPartitionTokens = 512;
constexpr int kMaxTileTokens = 64;

// Hands out pieces of one scratch buffer; with a null base it only counts.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <typename T>
  T* take(int64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return piece;
  }

  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

// Softmax state of the rows of one kv head, [rows] and [rows][columns].
struct SoftmaxState {
  float* max;
  float* sum;
  float* acc;

  static SoftmaxState take(Arena& arena, int64_t rows, int64_t columns) {
    return {arena.take<float>(rows), arena.take<float>(rows), arena.take<float>(rows * columns)};
  }

  void reset(int64_t rows, int64_t columns) const {
    for (int64_t r = 0; r < rows; ++r) max[r] = -__builtin_inff();
    memset(sum, 0, rows * sizeof(float));
    memset(acc, 0, rows * columns * sizeof(float));
  }
};

inline float exp2(float x) {
  float lanes[kLanes];
  store(lanes, exp2(broadcast(x)));
  return lanes[0];
}

// Turns raw scores into base-2 logits: scale, then soft cap, then ALiBi.
struct LogitTransform {
  float scale;
  float cap;    // 0 without one
  float slope;  // of this head; 0 without ALiBi

  F32 apply(F32 s, float distance) const {  // distance = position of lane 0 minus the query's
    if (cap != 0.f) {
      s = tanh(s * broadcast(scale / cap)) * broadcast(cap * kLog2E);
    } else {
      s = s * broadcast(scale * kLog2E);
    }
    if (slope != 0.f) s = fma(broadcast(slope * kLog2E), broadcast(distance) + iota(), s);
    return s;
  }
};

// What the rows of a tile are multiples of, where the cache is quantised: the scale of a key
// belongs to its score, that of a value to its probability.
struct TileScales {
  float* keys;
  float* values;
};

// Folds one tile of scores, of which the row sees tokens [begin, end), into the row's state; scores
// become weights of the values.
template <int Tokens, bool IsScaled>
inline void softmax_row(float* scores, int begin, int end, float distance,
                        const LogitTransform& transform, const TileScales& scales, float* max_,
                        float* sum_, float* acc, int64_t columns) {
  constexpr int kVectors = Tokens / kLanes;
  const F32 lowest = broadcast(-__builtin_inff());
  F32 logits[kVectors];
  F32 tile_max = lowest;
  for (int v = 0; v < kVectors; ++v) {
    F32 score = load(scores + v * kLanes);
    if constexpr (IsScaled) score = score * load(scales.keys + v * kLanes);
    logits[v] = transform.apply(score, distance + static_cast<float>(v * kLanes));
    if (begin != 0 || end != Tokens) {
      const F32 token = iota() + broadcast(static_cast<float>(v * kLanes));
      logits[v] = select_less(token, broadcast(static_cast<float>(begin)), lowest, logits[v]);
      logits[v] = select_less(token, broadcast(static_cast<float>(end)), logits[v], lowest);
    }
    tile_max = max(tile_max, logits[v]);
  }
  const float candidate = reduce_max(tile_max);
  if (candidate > *max_) {
    const float factor = exp2(*max_ - candidate);
    *max_ = candidate;
    *sum_ *= factor;
    for (int64_t c = 0; c < columns; c += kLanes) store(acc + c, load(acc + c) * broadcast(factor));
  }
  F32 sum = zero();
  for (int v = 0; v < kVectors; ++v) {
    const F32 p = exp2(logits[v] - broadcast(*max_));
    sum = sum + p;
    if constexpr (IsScaled) {
      store(scores + v * kLanes, p * load(scales.values + v * kLanes));
    } else {
      store(scores + v * kLanes, p);
    }
  }
  *sum_ += reduce_add(sum);
}

// The merge of two softmax states: into (max, sum, acc) of everything before, a partition's.
inline void merge_row(const SoftmaxState& total, const SoftmaxState& part, int64_t row,
                      int64_t columns) {
  const float max = total.max[row] > part.max[row] ? total.max[row] : part.max[row];
  const float a = exp2(total.max[row] - max);
  const float b = exp2(part.max[row] - max);
  total.max[row] = max;
  total.sum[row] = total.sum[row] * a + part.sum[row] * b;
  float* acc = total.acc + row * columns;
  const float* part_acc = part.acc + row * columns;
  for (int64_t c = 0; c < columns; c += kLanes) {
    store(acc + c, fma(load(part_acc + c), broadcast(b), load(acc + c) * broadcast(a)));
  }
}

template <typename Tile>
class AttentionTask {
 public:
  using T = typename Tile::T;
  using Cached = typename Tile::Cached;
  static constexpr bool kIsScaled = sizeof(Cached) == 1;
  static constexpr int kTokens = Tile::kTokens;

  AttentionTask(const PagedAttentionParams& params, const AttentionItem& item, void* scratch)
      : p_(params), item_(item), arena_(scratch) {
    group_ = p_.num_heads / p_.num_kv_heads;
    rows_ = (item.row_end - item.row_begin) * group_;
    heads_ = item.head_end - item.head_begin;
    columns_ = Tile::columns(p_.head_size);
    query_columns_ = Tile::query_columns(p_.head_size);
    const int64_t query_begin = p_.query_start_loc[item.seq];
    const int64_t query_len = p_.query_start_loc[item.seq + 1] - query_begin;
    first_token_ = query_begin + item.row_begin;
    first_position_ = p_.seq_lens[item.seq] - query_len + item.row_begin;
    keys_begin_ = row_keys_begin(0);
    keys_end_ = row_keys_end(rows_ - 1);
    block_table_ = p_.block_tables + item.seq * p_.block_table_stride;
    block_shift_ = __builtin_ctzll(static_cast<uint64_t>(p_.block_size));

    query_ = arena_.take<typename Tile::Query>(heads_ * rows_ * query_columns_);
    scores_ = arena_.take<float>(rows_ * kTokens);
    tile_ = arena_.take<char>(Tile::tile_bytes(p_.head_size));
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
    return AttentionTask(params, item, nullptr).arena_.used();
  }

  void run() {
    memset(zero_row_, 0, kZeroRowBytes);
    for (int64_t h = 0; h < heads_; ++h) {
      pack_query(h);
      totals_[h].reset(rows_, columns_);
    }
    load_tile_rows(tile_begin_of(keys_begin_), next_);
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

  int64_t row_keys_end(int64_t row) const { return first_position_ + row / group_ + 1; }
  int64_t row_keys_begin(int64_t row) const {
    return max_of(0, row_keys_end(row) - p_.sliding_window);
  }
  static int64_t tile_begin_of(int64_t position) { return position / kTokens * kTokens; }

  // Tokens of [tile, tile + kTokens) that lie in [begin, end), relative to the tile.
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

  // Finds the rows of a tile in the caches, for head 0 of the item.
  void load_tile_rows(int64_t tile, TilePointers& out) const {
    out.begin = clip(keys_begin_, tile);
    out.end = clip(keys_end_, tile);
    const int64_t mask = p_.block_size - 1;
    for (int t = out.begin; t < out.end; ++t) {
      const int64_t block = block_table_[(tile + t) >> block_shift_];
      const int64_t offset = (tile + t) & mask;
      out.keys[t] = row_address(p_.key_cache, block, offset);
      out.values[t] = row_address(p_.value_cache, block, offset);
    }
  }

  const char* row_address(const CacheView& cache, int64_t block, int64_t offset) const {
    const int64_t elements = block * cache.block_stride + item_.head_begin * cache.head_stride +
                             offset * cache.token_stride;
    return static_cast<const char*>(cache.data) + elements * static_cast<int64_t>(sizeof(Cached));
  }

  void walk_partition(int64_t begin, int64_t end) {
    for (int64_t h = 0; h < heads_; ++h) states_[h].reset(rows_, columns_);
    for (int64_t tile = max_of(begin, tile_begin_of(keys_begin_)); tile < end; tile += kTokens) {
      current_ = next_;
      const bool last = tile + kTokens >= keys_end_;
      if (!last) load_tile_rows(tile + kTokens, next_);
      for (int64_t h = 0; h < heads_; ++h) walk_tile(h, tile, last);
    }
    for (int64_t h = 0; h < heads_; ++h) {
      for (int64_t row = 0; row < rows_; ++row) {
        if (max_of(row_keys_begin(row), begin) < min_of(row_keys_end(row), end)) {
          merge_row(totals_[h], states_[h], row, columns_);
        }
      }
    }
  }

  void walk_tile(int64_t head, int64_t tile, bool last) {
    constexpr auto kBytes = static_cast<int64_t>(sizeof(Cached));
    const int64_t key_offset = head * p_.key_cache.head_stride * kBytes;
    const int64_t value_offset = head * p_.value_cache.head_stride * kBytes;
    const int next_begin = last ? 0 : next_.begin;
    const int next_end = last ? 0 : next_.end;
    prefetcher_.start({next_.keys, key_offset, next_begin, next_end},
                      {next_.values, value_offset, next_begin, next_end},
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
    Tile::pack_values(tile_, values, prefetcher_, p_.head_size);
    Tile::accumulate(states_[head].acc, scores_, rows_, tile_, current_.end, prefetcher_,
                     p_.head_size);
    prefetcher_.finish();
  }

  // Zero for tokens that nobody sees.
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
      T* out = static_cast<T*>(p_.out.data) + (first_token_ + row / group_) * p_.out.token_stride +
               (first_head + row % group_) * p_.out.head_stride;
      Tile::write_row(out, totals_[head].acc + row * columns_, 1.f / totals_[head].sum[row],
                      p_.head_size);
    }
  }

  const PagedAttentionParams& p_;
  const AttentionItem& item_;
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
  const int32_t* block_table_;
  int block_shift_;

  typename Tile::Query* query_;
  float* scores_;  // [rows][kTokens]
  void* tile_;     // packed keys, then packed values
  char* zero_row_;
  TileScales scales_;     // of the present tile
  SoftmaxState* states_;  // [heads], of the present partition
  SoftmaxState* totals_;  // [heads], of all partitions so far
  TilePointers current_;
  TilePointers next_;
  TilePrefetcher prefetcher_;
};

template <typename Tile>
void attend(const PagedAttentionParams& p, const AttentionItem* items, int64_t num_items,
            ThreadPool& pool) {
  parallel_for(pool, num_items, [&](int64_t i, int worker) {
    void* scratch = pool.scratch(worker, AttentionTask<Tile>::scratch_bytes(p, items[i]));
    AttentionTask<Tile>(p, items[i], scratch).run();
  });
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
