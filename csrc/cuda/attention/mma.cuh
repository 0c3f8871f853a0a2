// Paged attention on tensor cores: decode, prefill and chunks by one definition.
//
// A block computes some columns (a query head in a row each) of one kv head. Keys come in tiles of
// 16 tokens, cut at absolute positions; warp w takes tiles w, w + 4 ... of a partition, each with a
// pipeline of asynchronous copies of its own, so that a block has tens of kilobytes on their way at
// any time. Keys are the operand of 16 rows and queries that of 8 columns: a group of 8 heads that
// decodes fills a tensor core's tile. S^T = K Q^T, O^T = V^T P^T.
//
// The order of additions of a column: within a tile the tensor core's; tiles of a warp in order;
// the warps of a partition in order; partitions in order; a sink last. Columns of a matrix product
// do not touch each other, a column that sees nothing of a tile adds exact zeros, and rescaling by
// 2^0 is exact: so neither batch, chunk, split nor the other columns of a block change a bit.
//
// Over a cache of e4m3 operands are float16, whatever the activations are (mma_operands.cuh). A
// query is scaled to the range of float16 by a power of two, and the scores of its column back.
#pragma once

#include "cuda/attention/mma_warp.cuh"

namespace quire::cuda {

// Slots that a block begins with and takes together.
constexpr int kSharedSlotsAtOnce = 16;

// Merges what an earlier launch has computed of the columns (sharing.h) into a state that has seen
// nothing. `factors` is the block's memory, [kSharedSlotsAtOnce, columns].
template <int kHeadSize, int kColumns, int kElements>
__device__ __forceinline__ void begin_behind(const AttentionItem& item, int num_columns,
                                             const PartialResults& partials, MergeFactors* factors,
                                             ColumnState& total, float (&acc)[kElements]) {
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first_row = item.shared_row;
  if (thread < num_columns)
    total = {partials.max[first_row + thread], partials.sum[first_row + thread]};
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    const int element = thread + e * kMmaThreads;
    if (element < num_columns * kHeadSize) acc[e] = partials.acc[first_row * kHeadSize + element];
  }
  for (int first = 1; first < item.num_shared; first += kSharedSlotsAtOnce) {
    const int64_t row = first_row + int64_t{first} * item.shared_columns;
    const int count = min(kSharedSlotsAtOnce, item.num_shared - first);
    if (thread < num_columns) {
      for (int i = 0; i < count; ++i) {
        const int64_t own = row + int64_t{i} * item.shared_columns + thread;
        factors[i * kColumns + thread] = total.merge(partials.max[own], partials.sum[own]);
      }
    }
    __syncthreads();
    const float* part = partials.acc + row * kHeadSize;
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const int element = thread + e * kMmaThreads;
        if (element < num_columns * kHeadSize)
          acc[e] = merge_values(acc[e], part[element], factors[i * kColumns + element / kHeadSize]);
      }
      part += int64_t{item.shared_columns} * kHeadSize;
    }
    __syncthreads();  // all have read before the factors of others are shown
  }
}

template <typename T, typename Cached, int kHeadSize, int kColumnTiles, int kStages>
__global__ void __launch_bounds__(kMmaThreads, 2)
    attention_mma_kernel(const PagedAttentionParams p, const AttentionItem* items,
                         PartialResults partials) {
  begin_kernel();
  using Shape = MmaShape<Cached, kHeadSize, kColumnTiles, kStages>;
  QUIRE_DYNAMIC_SHARED(shared);
  auto* warps_acc = reinterpret_cast<float*>(shared + Shape::kPipelineBytes);
  auto& columns = *reinterpret_cast<SharedColumns<Shape::kColumns>*>(
      warps_acc + kMmaWarps * Shape::kColumns * Shape::kAccStride);
  const AttentionItem item = items[blockIdx.x];
  if (item.seq == kNoWork) return;
  const ItemBounds bounds(p, item, Shape::kColumns);
  const int thread = static_cast<int>(threadIdx.x);
  // Whether partitions are merged here, or by the merge.
  const bool merges = item.slot < 0 || item.is_prefix != 0;
  const int num_columns = min(Shape::kColumns, bounds.num_columns - item.column);  // that there are
  ColumnState total;  // of column `thread`
  float acc[Shape::kElements] = {};
  if constexpr (kCanShare<T, Cached, kHeadSize>) {
    if (item.num_shared > 0) {
      begin_behind<kHeadSize, Shape::kColumns>(
          item, num_columns, partials, reinterpret_cast<MergeFactors*>(warps_acc), total, acc);
    }
  }
  WarpAttention<T, Cached, kHeadSize, kColumnTiles, kStages> warp(p, item, bounds, shared);

  for (int partition = item.partition_begin; partition < item.partition_end; ++partition) {
    warp.walk(partition);
    warp.publish(warps_acc, columns);
    __syncthreads();
    const int64_t row = (int64_t{item.slot} + partition - item.partition_begin) * Shape::kColumns;
    if (thread < Shape::kColumns) {
      ColumnState state;
      for (int w = 0; w < kMmaWarps; ++w) columns.of_warp[w][thread].merge_into(state);
      columns.of_partition[thread] = total.merge(state.max, state.sum);
      if (!merges) {
        partials.max[row + thread] = state.max;
        partials.sum[row + thread] = state.sum;
      }
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < Shape::kElements; ++e) {
      const int column = (thread + e * kMmaThreads) / kHeadSize;
      if (column >= num_columns) continue;
      const int d = (thread + e * kMmaThreads) % kHeadSize;
      float part = 0.f;
#pragma unroll
      for (int w = 0; w < kMmaWarps; ++w) {
        part = merge_values(part, warps_acc[(w * Shape::kColumns + column) * Shape::kAccStride + d],
                            columns.of_warp[w][column].factors);
      }
      if (merges) {
        acc[e] = merge_values(acc[e], part, columns.of_partition[column]);
      } else {
        partials.acc[(row + column) * kHeadSize + d] = part;
      }
    }
    __syncthreads();  // all have read before the next partition is shown
  }
  warp.drain();
  if (!merges) return;
  if (item.slot >= 0) {
    const int64_t row = int64_t{item.slot} * Shape::kColumns;
    if (thread < Shape::kColumns) {
      partials.max[row + thread] = total.max;
      partials.sum[row + thread] = total.sum;
    }
#pragma unroll
    for (int e = 0; e < Shape::kElements; ++e) {
      const int element = thread + e * kMmaThreads;
      if (element / kHeadSize < num_columns) partials.acc[row * kHeadSize + element] = acc[e];
    }
    return;
  }
  if (thread < Shape::kColumns) {
    columns.factor[thread] = total.add_sink(p, bounds.head(item.kv_head, item.column + thread));
    columns.total[thread] = total.sum;
  }
  __syncthreads();
  const float value_scale = head_scale(p.value_scales, item.kv_head);
#pragma unroll
  for (int e = 0; e < Shape::kElements; ++e) {
    const int column = (thread + e * kMmaThreads) / kHeadSize;
    if (column < num_columns) {
      bounds.address<T>(p.out, item.kv_head,
                        item.column + column)[(thread + e * kMmaThreads) % kHeadSize] =
          from_float<T>(acc[e] * columns.factor[column] / columns.total[column] * value_scale);
    }
  }
}

}  // namespace quire::cuda
