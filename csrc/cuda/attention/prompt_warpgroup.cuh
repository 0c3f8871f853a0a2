// Paged attention of prompts by products of warpgroups, on an H100: two warpgroups take 64 columns
// of a kv head each over the same keys, which a third copies.
//
// The order of additions of a column is that of mma.cuh and of prompt.cuh, bit for bit: a stage has
// four tiles of one class, in order. While one warpgroup multiplies queries and keys, the other
// weighs values: it passes the block's barrier in the middle of a stage, not behind it.
#pragma once

#include "cuda/attention/prompt.cuh"
#include "cuda/attention/warpgroup_columns.cuh"

namespace quire::cuda {

// The stages of an item.
template <typename T, int kHeadSize>
class WarpgroupStages : public PromptTiles<T, WarpgroupPromptShape<T, kHeadSize>> {
 public:
  using Shape = WarpgroupPromptShape<T, kHeadSize>;
  using Base = PromptTiles<T, Shape>;
  using Base::Base;
  static constexpr int kStagesOfPartition = Base::kClasses * Base::kStagesOfClass;

  // Begins to copy a stage to where a byte of the memory begins, each warp a tile. Tokens beyond
  // the item's are zeros.
  __device__ __forceinline__ void copy(int stage, int place) {
    const int t = static_cast<int>(threadIdx.x) / kWarpSize % Shape::kTilesOfStage;
    Base::copies_.begin(Base::tile_of(stage) + t * Base::kClasses,
                        place + t * kTileTokens * Shape::kRowBytes);
  }

  // Where the stage lies that is copied behind that of a place.
  static __device__ int place_behind(int place) {
    return place == (Shape::kStages - 1) * Shape::kStageBytes ? 0 : place + Shape::kStageBytes;
  }
};

// The part of the warpgroup that copies. When warpgroups pass a barrier, the stage that some begin
// with is there, and that which others have taken up to here is free behind it: so of four stages
// one is being read, one may be, and two are on their way.
template <typename T, int kHeadSize>
__device__ __forceinline__ void copy_stages(const PagedAttentionParams& p,
                                            const AttentionItem& item, const ItemBounds& bounds,
                                            char* shared) {
  using Stages = WarpgroupStages<T, kHeadSize>;
  Stages stages(p, item, bounds, shared);
  const int end = item.partition_end * Stages::kStagesOfPartition;
  int stage = stages.find(item.partition_begin * Stages::kStagesOfPartition, end);
  int ahead = stage;  // to be copied
  int place = 0;
  const auto copy_next = [&] {
    if (ahead < end) {
      stages.copy(ahead, place);
      ahead = stages.find(ahead + 1, end);
    }
    place = Stages::place_behind(place);
    ptx::async_commit();
  };
  copy_next();
  for (bool is_first = true; is_first || stage < end; is_first = false) {
    copy_next();
    ptx::async_wait<1>();
    ptx::fence_for_products();
    ptx::meet_block();
    if (!is_first) stage = stages.find(stage + 1, end);
  }
}

template <typename T, int kHeadSize>
__device__ __forceinline__ void attend_columns(const PagedAttentionParams& p,
                                               const AttentionItem& item, const ItemBounds& bounds,
                                               const PartialResults& partials, char* shared) {
  using Stages = WarpgroupStages<T, kHeadSize>;
  using Shape = typename Stages::Shape;
  char* const queries = shared + Shape::kStages * Shape::kStageBytes;
  // The same in all lanes, which the compiler is to know.
  const int group =
      __shfl_sync(kFullMask, static_cast<int>(threadIdx.x) / Shape::kGroupThreads, 0);
  WarpgroupColumns<T, kHeadSize> columns(
      p, item, bounds, item.column + group * Shape::kGroupColumns,
      queries + group * Shape::kQueryBytes,
      reinterpret_cast<float4*>(queries + Shape::kGroups * Shape::kQueryBytes) + threadIdx.x);
  ptx::fence_for_products();
  ptx::meet_block();  // queries are there, and the first stage
  const Stages stages(p, item, bounds, shared);
  // Whether partitions are merged here, or by the merge.
  const bool merges = item.slot < 0 || item.is_prefix != 0;
  const bool is_late = group % 2 != 0;
  const int end = item.partition_end * Stages::kStagesOfPartition;
  int stage = stages.find(item.partition_begin * Stages::kStagesOfPartition, end);
  int place = 0;
  const int end_of_classes = item.partition_end * Stages::kClasses;
  for (int number = item.partition_begin * Stages::kClasses; number < end_of_classes; ++number) {
    const int class_end = (number + 1) * Stages::kStagesOfClass;
    while (stage < class_end) {
      const int tile = Stages::tile_of(stage);
      const char* keys = shared + place;
      const bool sees_any = columns.sees_any(tile);
      if (sees_any) columns.score(tile, keys);
      if (is_late) ptx::meet_block();
      if (sees_any) columns.add(tile, keys + Shape::kTileBytes);
      if (!is_late) ptx::meet_block();
      stage = stages.find(stage + 1, end);
      place = Stages::place_behind(place);
    }
    const int partition = number / Stages::kClasses;
    const int64_t row = (int64_t{item.slot} + partition - item.partition_begin) * Shape::kColumns;
    columns.merge_class(number % Stages::kClasses == Stages::kClasses - 1, merges, partials, row);
  }
  if (!merges) return;
  if (item.slot >= 0) {
    columns.store_total(partials, int64_t{item.slot} * Shape::kColumns);
  } else {
    columns.write();
  }
}

template <typename T, int kHeadSize>
__global__ void __launch_bounds__(WarpgroupPromptShape<T, kHeadSize>::kThreads, 1)
    warpgroup_prompt_kernel(const PagedAttentionParams p, const AttentionItem* items,
                            PartialResults partials) {
  begin_kernel();
#if QUIRE_HAS_WARPGROUPS
  using Shape = WarpgroupPromptShape<T, kHeadSize>;
  QUIRE_SWIZZLED_SHARED(shared);
  const AttentionItem item = items[blockIdx.x];
  if (item.seq == kNoWork) return;
  const ItemBounds bounds(p, item, Shape::kColumns);
  if (static_cast<int>(threadIdx.x) >= Shape::kMultiplyingThreads) {
    ptx::give_registers<Shape::kCopyingRegisters>();
    copy_stages<T, kHeadSize>(p, item, bounds, shared);
  } else {
    ptx::take_registers<Shape::kMultiplyingRegisters>();
    attend_columns<T, kHeadSize>(p, item, bounds, partials, shared);
  }
#else
  __trap();  // launched by a driver that was made to take other code than the device's
#endif
}

}  // namespace quire::cuda
