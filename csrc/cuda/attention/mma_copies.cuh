// How a warp of attention on tensor cores copies tiles from their blocks to shared memory.
#pragma once

#include "cuda/attention/mma_columns.cuh"

namespace quire::cuda {

// Lanes lie along a token, as many as make up 128 bytes or half of that, and over several tokens. A
// lane has the same chunks of each of its tokens: so their addresses differ by constants, in memory
// and, but for two kinds of rows, in shared memory.
template <typename Cached, typename Shape>
class TileCopies {
 public:
  static constexpr int kTilesBytes = 2 * Shape::kTileBytes;  // keys, then values
  static constexpr int kHalf = kTileTokens / 2;

  template <typename Bounds>
  __device__ TileCopies(const PagedAttentionParams& p, const AttentionItem& item,
                        const Bounds& bounds, char* stages, int lane)
      : p_(p),
        table_(p.block_tables + item.seq * p.block_table_stride),
        keys_(first_chunk(p.key_cache, item.kv_head, lane)),
        values_(first_chunk(p.value_cache, item.kv_head, lane)),
        stages_(stages),
        lane_(lane),
        keys_begin_(bounds.keys_begin),
        num_keys_(bounds.keys_end - bounds.keys_begin),
        block_shift_(log2_of(p.block_size)),
        block_size_(static_cast<uint32_t>(p.block_size)) {
    for (int i = 0; i < 2; ++i)
      to_[i] = Shape::offset(lane / kLanes + i * kRowsAtOnce, lane % kLanes);
  }

  // Begins to copy a tile, keys and values, to where a byte of the stages begins.
  __device__ void begin(int tile, int stage) {
#pragma unroll
    for (int half = 0; half < 2; ++half) begin_half(tile, half, stage);
  }

  // Looks up the block of half of a tile: a block has whole halves.
  __device__ uint32_t block_of(int tile, int half) const {
    const int token = tile * kTileTokens + half * kHalf;
    // Of those of the half that exist; if there are none, that of one that does.
    const int known = min(max(token, keys_begin_), keys_begin_ + num_keys_ - 1);
    // Unsigned, so that nothing is extended by its sign.
    const uint32_t place = static_cast<uint32_t>(known) >> block_shift_;
    return static_cast<uint32_t>(__ldg(table_ + place));
  }

  __device__ void begin_half(int tile, int half, int stage) {
    begin_half(tile, half, stage, block_of(tile, half));
  }

  // The same where its block is known.
  __device__ void begin_half(int tile, int half, int stage, uint32_t block_number) {
    const int token = tile * kTileTokens + half * kHalf;
    const int64_t block = block_number;
    const int64_t slot = static_cast<uint32_t>(token) & (block_size_ - 1);
    const Cached* key =
        keys_ + block * p_.key_cache.block_stride + slot * p_.key_cache.token_stride;
    const Cached* value =
        values_ + block * p_.value_cache.block_stride + slot * p_.value_cache.token_stride;
#pragma unroll
    for (int row = 0; row < kHalf; row += kRowsAtOnce) {
      copy_row(half, row, token + row + lane_ / kLanes, stage,
               key + row * p_.key_cache.token_stride, value + row * p_.value_cache.token_stride);
    }
  }

 private:
  static constexpr int kLanes = Shape::kChunks % 8 == 0 ? 8 : 4;  // along a token
  static constexpr int kRowsAtOnce = kWarpSize / kLanes;
  static constexpr int kChunkElements = 16 / Shape::kBytes;
  static_assert(kHalf % kRowsAtOnce == 0);
  static_assert(!Shape::kSwizzles || kLanes == 8, "chunks change places among eight");

  static __device__ const Cached* first_chunk(const CacheView& cache, int64_t kv_head, int lane) {
    return static_cast<const Cached*>(cache.data) + kv_head * cache.head_stride +
           lane / kLanes * cache.token_stride + lane % kLanes * kChunkElements;
  }

  // The lane's chunks of a row of the tile, `row` rows behind its first of the half.
  __device__ void copy_row(int half, int row, int token, int stage, const Cached* key,
                           const Cached* value) {
    // Keys that no row sees are never read: their block may belong to others by now.
    const bool exists =
        static_cast<uint32_t>(token - keys_begin_) < static_cast<uint32_t>(num_keys_);
    constexpr int kBothKinds = 2 * kRowsAtOnce;
    constexpr bool kHasBoth = kBothKinds <= kHalf;  // a half: then it is known which kind a row is
    const int kind = kHasBoth ? row % kBothKinds / kRowsAtOnce : half;
    const int first = kHasBoth ? half * kHalf + row / kBothKinds * kBothKinds : 0;
    char* to = stages_ + stage + to_[kind] + first * Shape::kRowBytes;
#pragma unroll
    for (int chunk = 0; chunk < Shape::kChunks; chunk += kLanes) {
      if (chunk + kLanes <= Shape::kChunks || chunk + lane_ % kLanes < Shape::kChunks) {
        const int behind = Shape::behind(chunk);
        ptx::async_copy_16(to + behind, key + chunk * kChunkElements, exists);
        ptx::async_copy_16(to + Shape::kTileBytes + behind, value + chunk * kChunkElements, exists);
      }
    }
  }

  const PagedAttentionParams& p_;
  const int32_t* table_;
  const Cached* keys_;  // of a block's first token, where the lane begins
  const Cached* values_;
  char* stages_;
  int lane_;
  int keys_begin_;
  int num_keys_;
  int block_shift_;
  uint32_t block_size_;
  int to_[2];  // where in a tile the lane's first chunks of its first two rows lie
};

}  // namespace quire::cuda
