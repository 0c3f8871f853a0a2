// A plan of the attention kernel on tensor cores, on the device.
#pragma once

#include "core/backend.h"
#include "cuda/attention/sharing.h"
#include "cuda/upload.h"
#include "cuda/workspace.h"

namespace quire::cuda {

// The partitions that blocks have computed and others will merge.
struct PartialResults {
  float* acc;  // [slots, columns, Dv]
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
  static int64_t max_columns(int64_t value_size) {
    return kBytes / static_cast<int64_t>((value_size + 2) * sizeof(float));
  }

  PartialResults get(int64_t value_size);

 private:
  FixedMemory<kBytes> memory_;
};

// The work of a launch, on the device.
struct DeviceWork {
  const AttentionItem* items = nullptr;
  const AttentionMerge* merges = nullptr;
  unsigned num_items = 0;
  unsigned num_merges = 0;
  int columns = 0;  // of a block
  PartialResults partials{};
};

// The same of what sequences share.
struct SharedWork {
  const SharedItem* items = nullptr;
  const int32_t* members = nullptr;
  unsigned num_items = 0;
  PartialResults partials{};
};

// Serves the layers of a step one after the other, and the steps of one stream.
class DevicePlan final : public AttentionPlan {
 public:
  // `seq_lens` and `query_start_loc` are in host memory.
  void make(const PagedAttentionParams& p, const int32_t* seq_lens, const int32_t* query_start_loc,
            cudaStream_t stream);

  // As `make`, for at most `p.max_query_len` rows of each sequence; keeps addresses between calls
  // of the same sizes. Of one row each, launches keep their sizes, too, but for shared(); of more
  // they are of few sizes: launches() says which. Blocks without work come last.
  //
  // Throws std::invalid_argument: a longer sequence, more rows or other sizes than that.
  void make_fixed(const PagedAttentionParams& p, const int32_t* seq_lens,
                  const int32_t* query_start_loc, int64_t max_seq_len, cudaStream_t stream);

  int64_t shared_blocks() const override { return shared_.work.num_items; }
  std::vector<int64_t> launches() const override;

  // Of partitions that sequences share, to be computed before the rest of them.
  const SharedWork& shared() const { return shared_.work; }
  // Of sequences with few columns, as those that decode.
  const DeviceWork& few() const { return few_[is_wide_].work; }
  // Of those with many, for the kernel of prompts.
  const DeviceWork& many() const { return many_.work; }

 private:
  struct Launch {
    // Takes memory for the most that steps of as many sequences and rows can send, so that it is
    // held before such a step comes.
    void reserve(const WorkBounds& most, cudaStream_t stream);

    // Sends a plan, filled up to a size with blocks that find no work. Addresses stay as long as
    // `most`, which no size exceeds, does not change.
    void send(const WorkPlan& plan, const WorkBounds& size, const WorkBounds& most, int columns,
              const PagedAttentionParams& p, cudaStream_t stream);

    DeviceWork work;
    int64_t most_items = 0;  // of a captured one
    Workspace memory;
    UploadBuffer buffer;  // gone first, once its copy to `memory` is done
  };

  struct SharedLaunch {
    // As that of a Launch. Addresses stay as long as neither `most_items` nor sequences change.
    void send(const SharedPlan& plan, int64_t num_items, int64_t most_items,
              const PagedAttentionParams& p, cudaStream_t stream);

    SharedWork work;
    Workspace memory;
    UploadBuffer buffer;  // gone first, once its copy to `memory` is done
  };

  void make_launches(const PagedAttentionParams& p, const int32_t* seq_lens,
                     const int32_t* query_start_loc, bool is_fixed, cudaStream_t stream);

  SharedLaunch shared_;
  Launch few_[2];  // of one tile of columns, and of two
  bool is_wide_ = false;
  Launch many_;
};

}  // namespace quire::cuda
