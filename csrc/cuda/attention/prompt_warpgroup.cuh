// Paged attention of prompts by products of warpgroups, on an H100: two warpgroups take 64 columns
// of a kv head each over the same keys, which a third copies.
//
// The order of additions of a column is that of mma.cuh and of prompt.cuh, bit for bit: a stage has
// four tiles of one class, in order. While one warpgroup multiplies queries and keys, the other
// weighs values: it passes the block's barrier in the middle of a stage, not behind it.
#pragma once

#include "cuda/attention/mma_copies.cuh"
#include "cuda/attention/warpgroup_columns.cuh"

namespace quire::cuda {

// The stages of an item, one after the other, and where each lies. `tile` is the stage's first.
template <typename T, int kHeadSize>
class WarpgroupStages {
 public:
  using Shape = WarpgroupPromptShape<T, kHeadSize>;
  static constexpr int kClasses = kMmaWarps;
  static constexpr int kTilesOfPartition = kPartitionTokens / kTileTokens;
  static constexpr int kStagesOfClass = kTilesOfPartition / kClasses / Shape::kTilesOfStage;
  static constexpr int kStagesOfPartition = kClasses * kStagesOfClass;

  template <typename Bounds>
  __device__ WarpgroupStages(const AttentionItem& item, const Bounds& bounds)
      : first_tile_(max(item.partition_begin * kTilesOfPartition, bounds.keys_begin / kTileTokens)),
        end_tile_(min(item.partition_end * kTilesOfPartition,
                      (bounds.keys_end + kTileTokens - 1) / kTileTokens)),
        end_(item.partition_end * kStagesOfPartition),
        stage_(item.partition_begin * kStagesOfPartition) {
    find();
  }

  // Whether there is a stage before another one.
  __device__ __forceinline__ bool is_before(int stage) const { return stage_ < stage; }
  __device__ __forceinline__ bool has_any() const { return stage_ < end_; }
  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ int tile() const { return tile_; }
  __device__ __forceinline__ int place() const { return place_; }

  // The first tile of a stage; the others are of the same class, which is every fourth tile of a
  // partition.
  static __device__ __forceinline__ int tile_of(uint32_t stage) {
    const uint32_t within = stage % kStagesOfPartition;  // unsigned, so that shifts do
    return static_cast<int>(stage / kStagesOfPartition * kTilesOfPartition +
                            within / kStagesOfClass +
                            within % kStagesOfClass * kClasses * Shape::kTilesOfStage);
  }

  __device__ __forceinline__ void go_on() {
    ++stage_;
    place_ = place_ == (Shape::kStages - 1) * Shape::kStageBytes ? 0 : place_ + Shape::kStageBytes;
    find();
  }

 private:
  // Passes over stages that have no tile of the item.
  __device__ __forceinline__ void find() {
    for (; stage_ < end_; ++stage_) {
      tile_ = tile_of(static_cast<uint32_t>(stage_));
      const int behind = max(first_tile_ - tile_, 0);
      const int known = tile_ + (behind + kClasses - 1) / kClasses * kClasses;
      if (known < end_tile_ && known < tile_ + kClasses * Shape::kTilesOfStage) return;
    }
  }

  int first_tile_;
  int end_tile_;
  int end_;
  int stage_;
  int tile_ = 0;
  int place_ = 0;
};

// The part of the warpgroup that copies, each warp a tile of a stage; tokens beyond the item's are
// zeros. When the others pass a barrier, the stage that some begin with is there, and that which
// some have taken up to here is free behind it: so of four stages one is being read, one may be,
// and two are on their way.
template <typename T, int kHeadSize, typename Bounds>
__device__ __forceinline__ void copy_stages(const PagedAttentionParams& p,
                                            const AttentionItem& item, const Bounds& bounds,
                                            char* shared) {
  using Shape = WarpgroupPromptShape<T, kHeadSize>;
  const int thread = static_cast<int>(threadIdx.x);
  const int own = thread / kWarpSize % Shape::kTilesOfStage;  // of the tiles
  TileCopies<T, Shape> copies(p, item, bounds, shared, thread % kWarpSize);
  WarpgroupStages<T, kHeadSize> taken(item, bounds);
  WarpgroupStages<T, kHeadSize> copied = taken;
  // The blocks of the warp's halves of tiles, one in each lane, of 16 stages: a load that begins
  // behind copies ends behind them.
  constexpr int kStagesOfLookup = kWarpSize / 2;
  const auto look_up = [&] {
    const int lane = thread % kWarpSize;
    const auto stage = static_cast<uint32_t>(copied.stage()) / kStagesOfLookup * kStagesOfLookup;
    return copies.block_of(taken.tile_of(stage + lane / 2) + own * kMmaWarps, lane % 2);
  };
  uint32_t blocks = look_up();
  const auto copy_next = [&] {
    if (copied.has_any()) {
      const int stage = copied.stage();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t block = __shfl_sync(kFullMask, blocks, stage % kStagesOfLookup * 2 + half);
        copies.begin_half(copied.tile() + own * kMmaWarps, half,
                          copied.place() + own * kTileTokens * Shape::kRowBytes, block);
      }
      copied.go_on();
      if (copied.stage() / kStagesOfLookup != stage / kStagesOfLookup) blocks = look_up();
    }
    ptx::async_commit();
  };
  copy_next();
  for (bool is_first = true; is_first || taken.has_any(); is_first = false) {
    copy_next();
    ptx::async_wait<1>();
    ptx::fence_for_products();
    ptx::meet_block();
    if (!is_first) taken.go_on();
  }
}

template <typename T, int kHeadSize, typename Bounds, typename Finish>
__device__ __forceinline__ void attend_columns(const PagedAttentionParams& p,
                                               const AttentionItem& item, const Bounds& bounds,
                                               const PartialResults& partials, char* shared,
                                               const Finish& finish) {
  using Stages = WarpgroupStages<T, kHeadSize>;
  using Shape = typename Stages::Shape;
  char* const queries = shared + Shape::kStages * Shape::kStageBytes;
  // The same in all lanes, which the compiler is to know.
  const int group = __shfl_sync(kFullMask, static_cast<int>(threadIdx.x) / Shape::kGroupThreads, 0);
  WarpgroupColumns<T, kHeadSize, Bounds> columns(
      p, item, bounds, item.column + group * Shape::kGroupColumns,
      queries + group * Shape::kQueryBytes,
      reinterpret_cast<float4*>(queries + Shape::kGroups * Shape::kQueryBytes) + threadIdx.x);
  ptx::fence_for_products();
  ptx::meet_block();  // queries are there, and the first stage
  Stages stages(item, bounds);
  // Whether partitions are merged here, or by the merge.
  const bool merges = item.slot < 0 || item.is_prefix != 0;
  const bool is_late = group % 2 != 0;
  const int end_of_classes = item.partition_end * Stages::kClasses;
  for (int number = item.partition_begin * Stages::kClasses; number < end_of_classes; ++number) {
    while (stages.is_before((number + 1) * Stages::kStagesOfClass)) {
      const int tile = stages.tile();
      const char* keys = shared + stages.place();
      const bool sees_any = columns.sees_any(tile);
      if (sees_any) columns.score(tile, keys);
      if (is_late) ptx::meet_block();
      if (sees_any) columns.add(tile, keys + Shape::kTileBytes);
      if (!is_late) ptx::meet_block();
      stages.go_on();
    }
    const int partition = number / Stages::kClasses;
    const int64_t row = (int64_t{item.slot} + partition - item.partition_begin) * Shape::kColumns;
    columns.merge_class(number % Stages::kClasses == Stages::kClasses - 1, merges, partials, row);
  }
  if (merges) finish(columns);
}

// Takes the partitions of an item. What they come to is stored, or left to `finish` where
// partitions are merged here and not by the merge.
template <typename T, int kHeadSize, typename Bounds, typename Finish>
__device__ __forceinline__ void attend_by_warpgroups(const PagedAttentionParams& p,
                                                     const AttentionItem& item,
                                                     const Bounds& bounds,
                                                     const PartialResults& partials, char* shared,
                                                     const Finish& finish) {
  using Shape = WarpgroupPromptShape<T, kHeadSize>;
  if (static_cast<int>(threadIdx.x) >= Shape::kMultiplyingThreads) {
    ptx::give_registers<Shape::kCopyingRegisters>();
    copy_stages<T, kHeadSize>(p, item, bounds, shared);
  } else {
    ptx::take_registers<Shape::kMultiplyingRegisters>();
    attend_columns<T, kHeadSize>(p, item, bounds, partials, shared, finish);
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
  attend_by_warpgroups<T, kHeadSize>(p, item, bounds, partials, shared, [&](const auto& columns) {
    if (item.slot >= 0) {
      columns.store_total(partials, int64_t{item.slot} * Shape::kColumns);
    } else {
      columns.write();
    }
  });
#else
  __trap();  // launched by a driver that was made to take other code than the device's
#endif
}

}  // namespace quire::cuda
