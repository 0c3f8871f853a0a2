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

// What an earlier launch has computed of a block's columns (sharing.h), in slots that it begins
// with.
template <int kHeadSize, int kColumns>
class EarlierSlots {
 public:
  static constexpr int kElements = kColumns * kHeadSize / kMmaThreads;
  static constexpr int kAtOnce = kElements <= 8 ? 4 : 2;  // slots whose loads are on their way

  // Begins to load the first slots.
  __device__ __forceinline__ void begin(const AttentionItem& item, int num_columns,
                                        const PartialResults& partials) {
    first_row_ = item.shared_row;
    columns_of_slot_ = item.shared_columns;
    num_slots_ = item.num_shared;
    num_columns_ = num_columns;
    load(partials, 0);
  }

  // Merges all of them into a state that has seen nothing. `factors` is the block's memory,
  // [kAtOnce, columns].
  __device__ __forceinline__ void merge(const PartialResults& partials, MergeFactors* factors,
                                        ColumnState& total, float (&acc)[kElements]) {
    const int thread = static_cast<int>(threadIdx.x);
    for (int first = 0; first < num_slots_; first += kAtOnce) {
      if (thread < num_columns_) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (first + i < num_slots_)
            factors[i * kColumns + thread] = total.merge(max_[i], sum_[i]);
        }
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= num_slots_) break;
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          const int element = thread + e * kMmaThreads;
          if (element < num_columns_ * kHeadSize) {
            acc[e] = merge_values(acc[e], part_[i][e], factors[i * kColumns + element / kHeadSize]);
          }
        }
      }
      if (first + kAtOnce < num_slots_) load(partials, first + kAtOnce);
      __syncthreads();  // all have read before other factors, or values of warps, are shown
    }
  }

 private:
  __device__ __forceinline__ void load(const PartialResults& partials, int first) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      // Those beyond the last load it again, and are left out.
      const int slot = min(first + i, num_slots_ - 1);
      const int64_t row = first_row_ + int64_t{slot} * columns_of_slot_;
      if (thread < num_columns_) {
        max_[i] = partials.max[row + thread];
        sum_[i] = partials.sum[row + thread];
      }
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const int element = thread + e * kMmaThreads;
        if (element < num_columns_ * kHeadSize)
          part_[i][e] = partials.acc[row * kHeadSize + element];
      }
    }
  }

  int64_t first_row_;
  int columns_of_slot_;
  int num_slots_;
  int num_columns_;
  float max_[kAtOnce];  // of column `thread`
  float sum_[kAtOnce];
  float part_[kAtOnce][kElements];
};

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
  const bool is_behind = kCanShare<T, Cached, kHeadSize> && item.num_shared > 0;
  EarlierSlots<kHeadSize, Shape::kColumns> earlier;
  // Before the copies, behind which loads wait for memory, and merged while those are on their way.
  if (is_behind) {
    earlier.begin(item, num_columns, partials);
  }
  WarpAttention<T, Cached, kHeadSize, kColumnTiles, kStages> warp(p, item, bounds, shared);
  if (is_behind) earlier.merge(partials, reinterpret_cast<MergeFactors*>(warps_acc), total, acc);

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
    for (int e = 0; e < Shape::kElements; ++e)
      partials.acc[row * kHeadSize + thread + e * kMmaThreads] = acc[e];
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
