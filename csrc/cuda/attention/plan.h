// Assigns the work of a step to the blocks of a launch. Made on the host, once for all layers.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/attention.h"

namespace quire::cuda {

constexpr int32_t kNoWork = -1;

// Work of one block: some query columns of a kv head over some partitions. A column is a query head
// of the kv head's group in a row of the sequence: row * group + head.
struct AttentionItem {
  int32_t seq;  // kNoWork where a fixed launch has more blocks than there is work
  int32_t kv_head;
  int32_t column;  // the first of them
  int32_t partition_begin;
  int32_t partition_end;
  int32_t slot;       // of its first partition's result, the others follow; -1 for the output
  int32_t is_prefix;  // whether others take the partitions behind: then its own have one slot
  // What it begins with: the results of the partitions before its own, in slots of an earlier
  // launch (sharing.h).
  int32_t num_shared;      // slots, the first of all their partitions; 0: it begins with nothing
  int32_t shared_row;      // of its first column in the first of them
  int32_t shared_columns;  // of each
};

// The results of several blocks that are to be merged: `num_slots` in order. The first is a block's
// of all its partitions, merged as here; each other is that of a partition.
struct AttentionMerge {
  int32_t seq;
  int32_t kv_head;
  int32_t column;
  int32_t slot;
  int32_t num_slots;
};

struct WorkPlan {
  std::vector<AttentionItem> items;  // in the order in which they are to start
  std::vector<AttentionMerge> merges;
  int64_t num_slots = 0;
};

// A tile of columns of a sequence, and the partitions whose keys they see.
struct WorkTile {
  int32_t seq;
  int32_t column;
  int64_t begin;
  int64_t end;
};

// The shape of the launch that work is planned for.
struct WorkLimits {
  int columns;         // that a block computes together
  int blocks_at_once;  // that the device runs
  int64_t max_slots;   // what would take more is not cut
  // Sequences with fewer columns are left out, and those with as many or more as `until`.
  int64_t from = 0;
  int64_t until = INT64_MAX;
  // Those before it are others'.
  int64_t first_slot = 0;
  // Whether all results go to slots, and not to the output: then each tile of each kv head has a
  // merge, in order.
  bool keeps_slots = false;
};

// Cuts the work of a step so that no block has more than a fair share: tiles are laid end to end
// and cut where a share is full, but that a tile of at most an eighth of a share stays whole. How
// it is cut changes no result: pieces end where partitions do, and partitions are merged in order.
//
// If blocks start in the order of the items, each where another has ended, and partitions take
// equally long, the last ends within 9/8 of the fair share, unless `max_slots` hinders.
//
// `seq_lens` and `query_start_loc` are in host memory.
//
// `num_shared` has the first partitions of each sequence that are computed elsewhere; it may be
// empty.
WorkPlan plan_work(const PagedAttentionParams& p, const int32_t* seq_lens,
                   const int32_t* query_start_loc, const WorkLimits& limits,
                   const std::vector<int32_t>& num_shared = {});

// The same for any tiles.
WorkPlan plan_tiles(const std::vector<WorkTile>& tiles, int64_t num_kv_heads,
                    const WorkLimits& limits);

struct WorkBounds {
  int64_t num_items = 0;
  int64_t num_merges = 0;
};

// The most that a plan can have of steps with `p.num_seqs` sequences of one row each, or of
// `p.num_tokens` rows in all and `p.max_query_len` of each, if that is more.
WorkBounds bound_work(const PagedAttentionParams& p, const WorkLimits& limits);

// The blocks of a launch for so many items, of few sizes: each has a captured graph of its own.
int64_t size_of_launch(int64_t num_items, int64_t blocks_at_once);
// The same with merges, none of them beyond the bounds.
WorkBounds size_of_launch(const WorkPlan& plan, const WorkBounds& bounds, int64_t blocks_at_once);

}  // namespace quire::cuda
