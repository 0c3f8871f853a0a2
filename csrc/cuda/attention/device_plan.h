// A plan of the attention kernel on tensor cores, on the device.
#pragma once

#include "core/backend.h"
#include "cuda/attention/plan.h"
#include "cuda/upload.h"
#include "cuda/workspace.h"

namespace quire::cuda {

// The partitions that blocks have computed and others will merge.
struct PartialResults {
  float* acc;  // [slots, columns, D]
  float* max;  // [slots, columns]
  float* sum;  // [slots, columns]
};

// Serves the layers of a step one after the other, and the steps of one stream: all use the same
// memory.
class DevicePlan final : public AttentionPlan {
 public:
  // `seq_lens` and `query_start_loc` are in host memory.
  void make(const PagedAttentionParams& p, const int32_t* seq_lens, const int32_t* query_start_loc,
            cudaStream_t stream);

  // As `make`, for at most one row of each sequence; keeps addresses and counts between calls of
  // the same sizes. Partial results go to `lasting`, which plans may share.
  //
  // Throws std::invalid_argument: a longer sequence or more rows than that.
  void make_fixed(const PagedAttentionParams& p, const int32_t* seq_lens,
                  const int32_t* query_start_loc, int64_t max_seq_len, LastingMemory& lasting,
                  cudaStream_t stream);

  // Tiles of eight columns that a block computes.
  static int column_tiles(const PagedAttentionParams& p);

  const AttentionItem* items() const { return items_; }
  const AttentionMerge* merges() const { return merges_; }
  unsigned num_items() const { return num_items_; }
  unsigned num_merges() const { return num_merges_; }
  const PartialResults& partials() const { return partials_; }

 private:
  void upload(const WorkPlan& plan, int64_t num_items, int64_t num_merges, cudaStream_t stream);

  UploadBuffer upload_;
  Workspace work_;
  Workspace partials_memory_;
  const AttentionItem* items_ = nullptr;
  const AttentionMerge* merges_ = nullptr;
  unsigned num_items_ = 0;
  unsigned num_merges_ = 0;
  PartialResults partials_{};
};

}  // namespace quire::cuda
