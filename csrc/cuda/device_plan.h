// A plan of the attention kernel on tensor cores, on the device.
#pragma once

#include "backend.h"
#include "cuda/attention_plan.h"
#include "cuda/workspace.h"

namespace quire::cuda {

// The partitions that blocks have computed for others to merge.
struct PartialResults {
  float* acc;  // [slots, columns, D]
  float* max;  // [slots, columns]
  float* sum;  // [slots, columns]
};

// May serve the layers of a step one after the other: they use the same memory.
class DevicePlan final : public AttentionPlan {
 public:
  // `seq_lens` and `query_start_loc` are the host's.
  DevicePlan(const PagedAttentionParams& p, const int32_t* seq_lens, const int32_t* query_start_loc,
             cudaStream_t stream);

  // Tiles of eight columns that a block computes.
  static int column_tiles(const PagedAttentionParams& p);

  const AttentionItem* items() const { return items_; }
  const AttentionMerge* merges() const { return merges_; }
  unsigned num_items() const { return num_items_; }
  unsigned num_merges() const { return num_merges_; }
  const PartialResults& partials() const { return partials_; }

 private:
  Workspace memory_;
  const AttentionItem* items_;
  const AttentionMerge* merges_;
  unsigned num_items_;
  unsigned num_merges_;
  PartialResults partials_;
};

}  // namespace quire::cuda
