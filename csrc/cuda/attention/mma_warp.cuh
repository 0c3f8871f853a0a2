// The part of a warp in attention on tensor cores (mma.cuh).
#pragma once

#include "cuda/attention/mma_copies.cuh"
#include "cuda/attention/mma_tile.cuh"

namespace quire::cuda {

// A warp's walk over its tiles.
template <typename T, typename Cached, int kHeadSize, int kColumnTiles, int kStages>
class WarpAttention : private WarpColumns<T, Cached, kHeadSize, kColumnTiles> {
 public:
  using Base = WarpColumns<T, Cached, kHeadSize, kColumnTiles>;
  using Shape = MmaShape<Cached, kHeadSize, kColumnTiles, kStages>;
  using Operands = typename Base::Operands;
  using Copies = TileCopies<Cached, TileShape<Cached, kHeadSize>>;

  __device__ WarpAttention(const PagedAttentionParams& p, const AttentionItem& item,
                           const ItemBounds& bounds, char* pipeline)
      : Base(p, item, bounds, item.column),
        stages_(pipeline + threadIdx.x / kWarpSize * kStages * Copies::kTilesBytes),
        warp_(threadIdx.x / kWarpSize),
        copies_(p, item, bounds, stages_, lane_) {
    constexpr int kTilesOfPartition = kPartitionTokens / kTileTokens;
    const int first =
        max(item.partition_begin * kTilesOfPartition, bounds.keys_begin / kTileTokens);
    const int end = min(item.partition_end * kTilesOfPartition,
                        (bounds.keys_end + kTileTokens - 1) / kTileTokens);
    next_ = first + ((warp_ - first) & (kMmaWarps - 1));
    tiles_end_ = end;
    blocks_ = look_up(next_);
    later_blocks_ = look_up(next_ + kTilesOfLookup * kMmaWarps);
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage)
      copy(next_ + stage * kMmaWarps, stage * Copies::kTilesBytes);
  }

  // Takes its tiles up to a partition's end.
  __device__ void walk(int partition) {
    const int end = min((partition + 1) * (kPartitionTokens / kTileTokens), tiles_end_);
    for (; next_ < end; next_ += kMmaWarps) {
      copy(next_ + (kStages - 1) * kMmaWarps, free_stage_);
      ptx::async_wait<kStages - 1>();
      __syncwarp();
      const char* keys = stages_ + stage_;
      Base::take(next_, keys, keys + Shape::kTileBytes, false);
      __syncwarp();  // the stage may be filled again
      free_stage_ = stage_;
      stage_ = stage_ == (kStages - 1) * Copies::kTilesBytes ? 0 : stage_ + Copies::kTilesBytes;
    }
  }

  // Writes its state of the partition to shared memory, acc as [warps, columns, kAccStride], and
  // starts the next.
  __device__ void publish(float* acc, SharedColumns<Shape::kColumns>& columns) {
    for (int g = 0; g < kColumnTiles; ++g) {
      for (int j = 0; j < 2; ++j) {
        const int column = g * 8 + lane_ % 4 * 2 + j;
        const float sum = Base::sum_of(g, j);
        if (lane_ < 4) {
          columns.of_warp[warp_][column].state = {max_[g][j], sum};
        }
#pragma unroll
        for (int step = 0; step < Shape::kSteps; ++step) {
          float* row = acc + (warp_ * Shape::kColumns + column) * Shape::kAccStride + step * 16;
          row[Operands::value_element(lane_, 0)] = acc_[g][step][j];
          row[Operands::value_element(lane_, 1)] = acc_[g][step][j + 2];
        }
      }
    }
    Base::reset();
  }

  __device__ void drain() { ptx::async_wait<0>(); }

 private:
  using Base::acc_;
  using Base::lane_;
  using Base::max_;

  // Begins to copy a tile, if there is one, into a stage.
  __device__ void copy(int tile, int stage) {
    if (tile < tiles_end_) {
      const int place = tile / kMmaWarps % kTilesOfLookup;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t block = __shfl_sync(kFullMask, blocks_, place * 2 + half);
        copies_.begin_half(tile, half, stage, block);
      }
      if (place == kTilesOfLookup - 1) {
        blocks_ = later_blocks_;
        later_blocks_ = look_up(tile + (1 + kTilesOfLookup) * kMmaWarps);
      }
    }
    ptx::async_commit();
  }

  // Looks up the block of a half of a tile in each lane, for those of the warp's tiles that are cut
  // where `tile` is. Long before they are copied: a load that begins behind copies ends behind
  // them.
  __device__ uint32_t look_up(int tile) const {
    const int first = tile / kMmaWarps / kTilesOfLookup * kTilesOfLookup;
    return copies_.block_of((first + lane_ / 2) * kMmaWarps + warp_, lane_ % 2);
  }

  static constexpr int kTilesOfLookup = kWarpSize / 2;

  char* stages_;
  int warp_;
  Copies copies_;
  int stage_ = 0;  // of the tile to take: its first byte
  int free_stage_ = (kStages - 1) * Copies::kTilesBytes;
  uint32_t blocks_;        // of the tiles that are copied now, a half in each lane
  uint32_t later_blocks_;  // of as many behind them
  int next_;               // tile to take
  int tiles_end_;
};

}  // namespace quire::cuda
