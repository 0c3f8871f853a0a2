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

// The memory for partial results of a stream: of one size and place, so that it is counted when the
// cache is sized, and captured graphs may keep its address. With heads of 128 it has room for
// 64,000 partitions of 8 columns, or half as many of 16.
class PartialMemory {
 public:
  static constexpr int64_t kBytes = 256 << 20;

  // Columns of partitions that it has room for.
  static int64_t max_columns(int64_t head_size) {
    return kBytes / static_cast<int64_t>((head_size + 2) * sizeof(float));
  }

  PartialResults get(int64_t head_size);

 private:
  FixedMemory<kBytes> memory_;
};

// Serves the layers of a step one after the other, and the steps of one stream.
class DevicePlan final : public AttentionPlan {
 public:
  // `seq_lens` and `query_start_loc` are in host memory.
  void make(const PagedAttentionParams& p, const int32_t* seq_lens, const int32_t* query_start_loc,
            cudaStream_t stream);

  // As `make`, for at most one row of each sequence; keeps addresses and counts between calls of
  // the same sizes.
  //
  // Throws std::invalid_argument: a longer sequence or more rows than that.
  void make_fixed(const PagedAttentionParams& p, const int32_t* seq_lens,
                  const int32_t* query_start_loc, int64_t max_seq_len, cudaStream_t stream);

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
  const AttentionItem* items_ = nullptr;
  const AttentionMerge* merges_ = nullptr;
  unsigned num_items_ = 0;
  unsigned num_merges_ = 0;
  PartialResults partials_{};
};

}  // namespace quire::cuda
