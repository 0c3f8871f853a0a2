// Paged attention of partitions that several decoding sequences share, on tensor cores.
//
// The columns of a block are query heads of as many sequences as fit, or of half as many
// (sharing.cu), one row of each, and take each tile as the columns of a prompt do (prompt.cuh),
// with the same bits. Results go to slots, with which the blocks that compute the rest of a
// sequence begin (mma.cuh).
#pragma once

#include "cuda/attention/prompt.cuh"
#include "cuda/attention/sharing.h"

namespace quire::cuda {

// The columns and keys of an item; every column sees every key.
struct SharedBounds {
  int group;
  int num_columns;
  int keys_begin;
  int keys_end;
  const int32_t* seqs;  // of the columns, a group each
  const int32_t* query_start_loc;
  const int32_t* seq_lens;

  __device__ SharedBounds(const PagedAttentionParams& p, const SharedItem& item,
                          const int32_t* members)
      : group(static_cast<int>(p.num_heads / p.num_kv_heads)),
        num_columns(item.num_members * group),
        keys_begin(0),
        keys_end(item.partition_end * kPartitionTokens),
        seqs(members + item.first_member),
        query_start_loc(p.query_start_loc),
        seq_lens(p.seq_lens) {}

  __device__ int first_key(int64_t, int) const { return 0; }
  __device__ int end_of_keys(int) const { return keys_end; }
  __device__ int position(int column) const { return seq_lens[seqs[column / group]] - 1; }

  __device__ int head(int kv_head, int column) const { return kv_head * group + column % group; }

  // The address of a column's query among rows.
  template <typename T>
  __device__ T* address(const RowsView& rows, int kv_head, int column) const {
    return static_cast<T*>(rows.data) + query_start_loc[seqs[column / group]] * rows.token_stride +
           head(kv_head, column) * rows.head_stride;
  }
};

template <typename T, int kHeadSize, int kWarps, int kTilesOfStage>
__global__ void __launch_bounds__(kWarps* kWarpSize, 1)
    attention_shared_kernel(const PagedAttentionParams p, const SharedItem* items,
                            const int32_t* members, PartialResults partials) {
  begin_kernel();
  using Shape = PromptShape<T, kHeadSize, kWarps, kTilesOfStage>;
  QUIRE_DYNAMIC_SHARED(shared);
  const SharedItem item = items[blockIdx.x];
  if (item.seq == kNoWork) return;
  const SharedBounds bounds(p, item, members);
  attend_prompt<T, kHeadSize, Shape>(p, item, bounds, partials, shared, [&](const auto& columns) {
    columns.store_total(partials, int64_t{item.slot} * Shape::kColumns);
  });
}

}  // namespace quire::cuda
