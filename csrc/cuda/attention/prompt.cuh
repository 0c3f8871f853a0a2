// Paged attention of prompts on tensor cores: many columns share each tile of keys.
//
// A block computes 16 columns of one kv head in each of its warps, which all take every tile that
// its copies bring. The order of additions of a column is that of mma.cuh, bit for bit, where
// four warps share the tiles of a partition: here a warp takes the tiles of the first of those
// warps, then those of the second, and so on, and merges each with what came before as they are
// merged there. What it has merged lies in shared memory, where no other thread reads it.
#pragma once

#include "cuda/attention/mma_copies.cuh"
#include "cuda/attention/mma_tile.cuh"

namespace quire::cuda {

// The shape of a block's work over a cache of `T`. Neither warps nor tiles of a stage change a bit.
template <typename T, int kHeadSize, int kNumWarps, int kNumTiles>
struct PromptShape : TileShape<T, kHeadSize> {
  using Tile = TileShape<T, kHeadSize>;
  static constexpr int kWarps = kNumWarps;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kColumnTiles = 2;  // of a warp
  static constexpr int kWarpColumns = 8 * kColumnTiles;
  static constexpr int kColumns = kWarps * kWarpColumns;
  static constexpr int kTilesOfStage = kNumTiles;
  static_assert(kTilesOfStage % 2 == 0, "two are taken at once");
  static constexpr int kStageBytes = kTilesOfStage * 2 * Tile::kTileBytes;
  static constexpr int kStages = 2;
  // Weighted values of a thread, in fours.
  static constexpr int kFours = kColumnTiles * Tile::kSteps;
  static constexpr int kHeldBytes = kFours * kThreads * static_cast<int>(sizeof(float4));
  // Two of them: merged of the partition, and of those before.
  static constexpr int kSharedBytes = kStages * kStageBytes + 2 * kHeldBytes;
};

// The tiles of an item in the order of mma.cuh's additions, in stages of several. A class is those
// that one of its warps would take of a partition: every fourth.
template <typename T, typename Shape>
class PromptTiles {
 public:
  using Copies = TileCopies<T, typename Shape::Tile>;
  static constexpr int kClasses = kMmaWarps;
  static constexpr int kTilesOfPartition = kPartitionTokens / kTileTokens;
  static constexpr int kStagesOfClass = kTilesOfPartition / kClasses / Shape::kTilesOfStage;

  // `stages` is the block's memory for tiles.
  template <typename Bounds>
  __device__ PromptTiles(const PagedAttentionParams& p, const AttentionItem& item,
                         const Bounds& bounds, char* stages)
      : copies_(p, item, bounds, stages, static_cast<int>(threadIdx.x) % kWarpSize),
        first_(max(item.partition_begin * kTilesOfPartition, bounds.keys_begin / kTileTokens)),
        end_(min(item.partition_end * kTilesOfPartition,
                 (bounds.keys_end + kTileTokens - 1) / kTileTokens)) {}

  // The first tile of a stage; others follow in steps of kClasses.
  static __device__ int tile_of(int stage) {
    constexpr int kStagesOfPartition = kClasses * kStagesOfClass;
    const int within = stage % kStagesOfPartition;
    return stage / kStagesOfPartition * kTilesOfPartition + within / kStagesOfClass +
           within % kStagesOfClass * kClasses * Shape::kTilesOfStage;
  }

  __device__ bool has(int tile) const { return tile >= first_ && tile < end_; }

  // Begins to copy a stage, if it is before `end`, to where a byte of the memory begins: the warps
  // share the halves of its tiles.
  __device__ __forceinline__ void copy(int stage, int end, int place) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
#pragma unroll 1
    for (int half = warp; stage < end && half < 2 * Shape::kTilesOfStage; half += Shape::kWarps) {
      const int tile = tile_of(stage) + half / 2 * kClasses;
      if (has(tile)) copies_.begin_half(tile, half % 2, place + half / 2 * Copies::kTilesBytes);
    }
    ptx::async_commit();
  }

  // The first stage from `stage` on that has a tile of the item; `end` if none before it has.
  __device__ int find(int stage, int end) const {
    while (stage < end && !has_any(stage)) ++stage;
    return stage;
  }

 private:
  __device__ bool has_any(int stage) const {
    const int tile = tile_of(stage);
    const int behind = max(first_ - tile, 0);
    const int known = tile + (behind + kClasses - 1) / kClasses * kClasses;
    return known < end_ && known < tile + kClasses * Shape::kTilesOfStage;
  }

  Copies copies_;
  int first_;
  int end_;
};

// A warp's columns, what was merged of them, and where their results go.
template <typename T, int kHeadSize, typename Shape, typename Bounds>
class PromptColumns : private WarpColumns<T, T, kHeadSize, Shape::kColumnTiles> {
 public:
  using Base = WarpColumns<T, T, kHeadSize, Shape::kColumnTiles>;
  using Operands = typename Base::Operands;

  // `held` is the block's memory for what is merged, twice kHeldBytes.
  __device__ PromptColumns(const PagedAttentionParams& p, const AttentionItem& item,
                           const Bounds& bounds, float4* held)
      : Base(p, item, bounds, item.column + warp() * Shape::kWarpColumns),
        item_(item),
        bounds_(bounds),
        column_(item.column + warp() * Shape::kWarpColumns),
        partition_(held + threadIdx.x),
        total_(held + Shape::kFours * Shape::kThreads + threadIdx.x) {
    const int last = min(column_ + Shape::kWarpColumns, bounds.num_columns) - 1;
    const bool exists = column_ <= last;
    first_tile_ = bounds.first_key(p.sliding_window, column_) / kTileTokens;
    tiles_end_ = exists ? (bounds.end_of_keys(last) + kTileTokens - 1) / kTileTokens : 0;
    all_see_from_ = bounds.first_key(p.sliding_window, last);
    all_see_end_ = exists ? bounds.end_of_keys(column_) : 0;
    is_plain_ = p.soft_cap == 0.f && p.alibi_slopes == nullptr;
  }

  // Takes a tile, unless no column sees any of it.
  __device__ __forceinline__ void take(int tile, const char* keys, const char* values) {
    if (tile < first_tile_ || tile >= tiles_end_) return;
    Base::take(tile, keys, values, is_seen_by_all(tile));
  }

  // Takes those of two tiles of a class that the item has, one after the other in memory.
  template <typename Tiles>
  __device__ __forceinline__ void take_two(const Tiles& tiles, int tile, const char* keys) {
    constexpr int kTileBytes = Shape::kTileBytes;
    const int other = tile + Tiles::kClasses;
    const char* const other_keys = keys + Tiles::Copies::kTilesBytes;
    // What every column sees of a stage is of the item: stages lie within its partitions.
    if (is_plain_ && is_seen_by_all(tile) && is_seen_by_all(other)) {
      Base::take_two({keys, other_keys}, {keys + kTileBytes, other_keys + kTileBytes});
      return;
    }
#pragma unroll 1
    for (int i = 0; i < 2; ++i, tile = other, keys = other_keys)
      if (tiles.has(tile)) take(tile, keys, keys + kTileBytes);
  }

  // Merges the tiles taken since the last call, a class of the partition, with those before; the
  // last class's with the partitions before, or else stores the partition's in a row of `partials`.
  __device__ __forceinline__ void merge_class(int number, bool merges,
                                              const PartialResults& partials, int64_t row) {
    MergeFactors factors[Shape::kColumnTiles][2];
    MergeFactors of_partition[Shape::kColumnTiles][2] = {};
    const bool is_last = number == kMmaWarps - 1;
#pragma unroll
    for (int g = 0; g < Shape::kColumnTiles; ++g) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        ColumnState& state = states_[g][j];
        factors[g][j] = state.merge(max_[g][j], Base::sum_of(g, j));
        if (!is_last) continue;
        if (merges) {
          of_partition[g][j] = totals_[g][j].merge(state.max, state.sum);
        } else if (lane_ < 4) {
          const int64_t own = row + warp() * Shape::kWarpColumns + column_of(g, j);
          partials.max[own] = state.max;
          partials.sum[own] = state.sum;
        }
        state = {};
      }
    }
#pragma unroll
    for (int g = 0; g < Shape::kColumnTiles; ++g) {
#pragma unroll
      for (int step = 0; step < Shape::kSteps; ++step) {
        const int at = (g * Shape::kSteps + step) * Shape::kThreads;
        const float4 before = number == 0 ? float4{0.f, 0.f, 0.f, 0.f} : partition_[at];
        const float* acc = acc_[g][step];
        const float4 merged = merge(before, {acc[0], acc[1], acc[2], acc[3]}, factors[g]);
        if (!is_last) {
          partition_[at] = merged;
        } else if (merges) {
          const float4 earlier = has_total_ ? total_[at] : float4{0.f, 0.f, 0.f, 0.f};
          total_[at] = merge(earlier, merged, of_partition[g]);
        } else {
          store(partials, row, g, step, merged);
        }
      }
    }
    has_total_ |= is_last;
    Base::reset();
  }

  // Stores what all partitions came to in a row of `partials`.
  __device__ __forceinline__ void store_total(const PartialResults& partials, int64_t row) const {
#pragma unroll
    for (int g = 0; g < Shape::kColumnTiles; ++g) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (lane_ >= 4) continue;
        const int64_t own = row + warp() * Shape::kWarpColumns + column_of(g, j);
        partials.max[own] = totals_[g][j].max;
        partials.sum[own] = totals_[g][j].sum;
      }
#pragma unroll 1
      for (int step = 0; step < Shape::kSteps; ++step)
        store(partials, row, g, step, total_[(g * Shape::kSteps + step) * Shape::kThreads]);
    }
  }

  // Writes the results.
  __device__ __forceinline__ void write(const PagedAttentionParams& p) const {
    const float value_scale = head_scale(p.value_scales, item_.kv_head);
#pragma unroll
    for (int g = 0; g < Shape::kColumnTiles; ++g) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = column_ + column_of(g, j);
        if (column >= bounds_.num_columns) continue;
        T* out = bounds_.template address<T>(p.out, item_.kv_head, column);
        ColumnState total = totals_[g][j];
        const float factor = total.add_sink(p, bounds_.head(item_.kv_head, column));
#pragma unroll 1
        for (int step = 0; step < Shape::kSteps; ++step) {
          const float4 four = total_[(g * Shape::kSteps + step) * Shape::kThreads];
          const float values[2] = {j == 0 ? four.x : four.y, j == 0 ? four.z : four.w};
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            out[step * 16 + Operands::value_element(lane_, half)] =
                from_float<T>(values[half] * factor / total.sum * value_scale);
          }
        }
      }
    }
  }

 private:
  using Base::acc_;
  using Base::lane_;
  using Base::max_;

  static __device__ int warp() { return static_cast<int>(threadIdx.x) / kWarpSize; }

  __device__ bool is_seen_by_all(int tile) const {
    const int token = tile * kTileTokens;
    return token >= all_see_from_ && token + kTileTokens <= all_see_end_;
  }

  // Among the warp's.
  __device__ int column_of(int g, int j) const { return g * 8 + lane_ % 4 * 2 + j; }

  // Fours of acc_: columns j of every other element.
  static __device__ float4 merge(const float4& before, const float4& after,
                                 const MergeFactors (&factors)[2]) {
    return {
        merge_values(before.x, after.x, factors[0]), merge_values(before.y, after.y, factors[1]),
        merge_values(before.z, after.z, factors[0]), merge_values(before.w, after.w, factors[1])};
  }

  __device__ void store(const PartialResults& partials, int64_t row, int g, int step,
                        const float4& four) const {
    const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t own = row + warp() * Shape::kWarpColumns + column_of(g, i % 2);
      partials.acc[own * kHeadSize + step * 16 + Operands::value_element(lane_, i / 2)] = values[i];
    }
  }

  const AttentionItem& item_;
  const Bounds& bounds_;
  int column_;         // the first
  float4* partition_;  // merged of it, [kFours, kThreads]
  float4* total_;
  ColumnState states_[Shape::kColumnTiles][2];  // of the partition
  ColumnState totals_[Shape::kColumnTiles][2];
  bool has_total_ = false;
  int first_tile_;  // that a column sees
  int tiles_end_;
  int all_see_from_;  // tokens from here to the end below are seen by every column
  int all_see_end_;
  bool is_plain_;  // scores are products, and nothing else
};

// Takes the partitions of an item. What they come to is stored, or left to `finish` where
// partitions are merged here and not by the merge.
template <typename T, int kHeadSize, typename Shape, typename Bounds, typename Finish>
__device__ __forceinline__ void attend_prompt(const PagedAttentionParams& p,
                                              const AttentionItem& item, const Bounds& bounds,
                                              const PartialResults& partials, char* shared,
                                              const Finish& finish) {
  using Tiles = PromptTiles<T, Shape>;
  constexpr int kStagesOfPartition = Tiles::kClasses * Tiles::kStagesOfClass;
  Tiles tiles(p, item, bounds, shared);
  PromptColumns<T, kHeadSize, Shape, Bounds> columns(
      p, item, bounds, reinterpret_cast<float4*>(shared + Shape::kStages * Shape::kStageBytes));
  // Whether partitions are merged here, or by the merge.
  const bool merges = item.slot < 0 || item.is_prefix != 0;
  const int end = item.partition_end * kStagesOfPartition;

  int stage = tiles.find(item.partition_begin * kStagesOfPartition, end);
  int place = 0;  // of the stage: its first byte
  tiles.copy(stage, end, place);
  for (int partition = item.partition_begin; partition < item.partition_end; ++partition) {
    for (int number = 0; number < Tiles::kClasses; ++number) {
      const int class_end = partition * kStagesOfPartition + (number + 1) * Tiles::kStagesOfClass;
      while (stage < class_end) {
        ptx::async_wait<0>();
        __syncthreads();  // the stage is filled, and the other one has been read
        const int next = tiles.find(stage + 1, end);
        tiles.copy(next, end, Shape::kStageBytes - place);
        for (int i = 0; i < Shape::kTilesOfStage; i += 2) {
          const int tile = Tiles::tile_of(stage) + i * Tiles::kClasses;
          const char* keys = shared + place + i * Tiles::Copies::kTilesBytes;
          columns.take_two(tiles, tile, keys);
        }
        stage = next;
        place = Shape::kStageBytes - place;
      }
      const int64_t row = (int64_t{item.slot} + partition - item.partition_begin) * Shape::kColumns;
      columns.merge_class(number, merges, partials, row);
    }
  }
  ptx::async_wait<0>();
  if (merges) finish(columns);
}

template <typename T, int kHeadSize, int kWarps, int kTilesOfStage>
__global__ void __launch_bounds__(kWarps* kWarpSize, 1)
    attention_prompt_kernel(const PagedAttentionParams p, const AttentionItem* items,
                            PartialResults partials) {
  begin_kernel();
  using Shape = PromptShape<T, kHeadSize, kWarps, kTilesOfStage>;
  QUIRE_DYNAMIC_SHARED(shared);
  const AttentionItem item = items[blockIdx.x];
  if (item.seq == kNoWork) return;
  const ItemBounds bounds(p, item, Shape::kColumns);
  attend_prompt<T, kHeadSize, Shape>(p, item, bounds, partials, shared, [&](const auto& columns) {
    if (item.slot >= 0) {
      columns.store_total(partials, int64_t{item.slot} * Shape::kColumns);
    } else {
      columns.write(p);
    }
  });
}

}  // namespace quire::cuda
