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
  int32_t slot;  // of its first partition's result, the others follow; -1 for the output itself
};

// The results of several blocks that are to be merged: of `num_slots` partitions in order.
struct AttentionMerge {
  int32_t seq;
  int32_t kv_head;
  int32_t column;
  int32_t slot;
  int32_t num_slots;
};

struct WorkPlan {
  std::vector<AttentionItem> items;  // longest first
  std::vector<AttentionMerge> merges;
  int64_t num_slots = 0;
};

// Cuts the work of a step into about as many equal pieces as the device runs at once. How it is cut
// changes no result: pieces end where partitions do, and partitions are merged in order.
//
// `seq_lens` and `query_start_loc` are in host memory; `columns` is what a block computes together;
// `may_split` is false where nothing is to be split, however little work there is.
WorkPlan plan_work(const PagedAttentionParams& p, const int32_t* seq_lens,
                   const int32_t* query_start_loc, int columns, int num_blocks_at_once,
                   bool may_split = true);

// The most that a plan can have of steps with up to `p.num_seqs` sequences, of one row each and
// up to `max_seq_len` tokens.
struct WorkBounds {
  int64_t num_items;
  int64_t num_merges;
  int64_t num_slots;
  bool may_split;  // for plan_work
};
WorkBounds bound_work(const PagedAttentionParams& p, int64_t max_seq_len, int columns,
                      int num_blocks_at_once);

}  // namespace quire::cuda
