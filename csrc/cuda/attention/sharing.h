// Finds sequences that decode behind the same blocks, as those with a common system prompt, and
// plans that these are read once for many. Made on the host, once for all layers.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/attention/plan.h"

namespace quire::cuda {

// Sequences of one row each whose first partitions lie in the same blocks.
struct SharingGroup {
  std::vector<int32_t> seqs;
  int64_t num_partitions = 0;
};

// The groups of a step that save most reads if a sequence is in one at most. A sequence takes part
// with what it sees all of, but for the partition of its own token.
//
// The arrays, and the block tables of `p`, are in host memory.
std::vector<SharingGroup> find_sharing(const PagedAttentionParams& p, const int32_t* seq_lens,
                                       const int32_t* query_start_loc);

// An item whose columns are those of several sequences; `seq` is the one whose table is read.
struct SharedItem : AttentionItem {
  int32_t first_member;  // in the plan's list
  int32_t num_members;
};

struct SharedPlan {
  std::vector<SharedItem> items;
  std::vector<int32_t> members;
  int64_t num_slots = 0;
  // Of each sequence: how many of its first partitions the items compute; empty if there are none.
  std::vector<int32_t> num_shared;

  // Has what is left of the sequences begin with the results.
  void begin_behind(WorkPlan& rest) const;

  // Where the results are.
  struct Place {
    int64_t tile = 0;
    int32_t column = 0;  // of the sequence's first in it
  };
  std::vector<Place> places;          // of each sequence
  std::vector<AttentionMerge> slots;  // of each tile of each kv head
  int columns = 0;                    // of a slot
  int64_t num_kv_heads = 0;
};

// Plans what groups share, for blocks of `limits.columns` columns; what finds no slots is shared in
// part or not at all. Nothing is planned where it would not pay: while the blocks of this launch
// read a partition each, `other_blocks` of decoding would do so.
SharedPlan plan_shared(const PagedAttentionParams& p, const std::vector<SharingGroup>& groups,
                       const WorkLimits& limits, int other_blocks);

// The most items of it for steps with `p.num_seqs` sequences of one row each.
int64_t bound_shared(const PagedAttentionParams& p, const WorkLimits& limits);

}  // namespace quire::cuda
