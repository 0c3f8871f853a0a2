// The two products of an attention tile in fp32 vectors, for every element type and ISA. See
// attention.h for how tiles make up a row's result.
#pragma once

#include "cpu/kernels/norm.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

// Rows of a tile of keys or values: token t lies `offset` bytes behind rows[t] when begin <= t <
// end and is zero otherwise.
struct TileRows {
  const char* const* rows;
  int64_t offset;
  int begin;
  int end;
  const char* zero_row;

  template <typename Cached>
  const Cached* at(int t) const {
    return reinterpret_cast<const Cached*>(t >= begin && t < end ? rows[t] + offset : zero_row);
  }
};

// Prefetches the rows of the next tile while the current one is computed. Requests must be spread
// evenly: memory takes about as long as the arithmetic, and a burst of them would stall it. The
// products call advance() at regular intervals; the number of rows of each call is set from the
// number of calls that the previous tile took.
class TilePrefetcher {
 public:
  struct Rows {
    const char* const* rows;
    int64_t offset;  // in bytes
    int begin;
    int end;
  };

  void start(const Rows& keys, const Rows& values, int bytes_per_row) {
    parts_[0] = keys;
    parts_[1] = values;
    part_ = 0;
    row_ = keys.begin;
    bytes_per_row_ = bytes_per_row;
    credit_ = 0;
    calls_ = 0;
  }

  QUIRE_ALWAYS_INLINE void advance() {
    ++calls_;
    for (credit_ += rate_; credit_ >= kRow; credit_ -= kRow) next_row();
  }

  // Prefetches the rest.
  void finish() {
    const int64_t rows = (parts_[0].end - parts_[0].begin) + (parts_[1].end - parts_[1].begin);
    while (next_row()) {
    }
    rate_ = static_cast<int>(rows * kRow / max_of(calls_, 1)) + 1;
  }

 private:
  static constexpr int kRow = 1 << 10;  // credit that one row costs

  bool next_row() {
    if (row_ >= parts_[part_].end) {
      if (part_ == 1) return false;
      part_ = 1;
      row_ = parts_[1].begin;
      if (row_ >= parts_[1].end) return false;
    }
    const char* p = parts_[part_].rows[row_++] + parts_[part_].offset;
    for (int i = 0; i < bytes_per_row_; i += 64) prefetch(p + i);
    return true;
  }

  Rows parts_[2];
  int part_;
  int row_;
  int bytes_per_row_;
  int credit_;
  int rate_ = kRow;
  int calls_;
};

// Products over M query rows at once reuse what they load; a row's additions are the same for every
// M.
template <typename Activation, typename CacheElement = Activation>
struct Fp32Tile {
  using T = Activation;
  using Cached = CacheElement;
  using Query = float;
  static constexpr int kTokens = 32;

  static int64_t columns(int64_t head_size) { return round_up(head_size, kLanes); }
  static int64_t query_columns(int64_t head_size) { return head_size; }
  static int64_t tile_bytes(int64_t head_size) {
    return kTokens * columns(head_size) * static_cast<int64_t>(sizeof(float));
  }

  static void pack_query(Query* dst, const T* src, int64_t head_size) {
    for (int64_t d = 0; d < head_size; ++d) dst[d] = to_float(src[d]);
  }

  // tile[d][token]
  static void pack_keys(void* tile, const TileRows& keys, TilePrefetcher& next, int64_t head_size) {
    float* dst = static_cast<float*>(tile);
    for (int t = 0; t < keys.end; t += kLanes) {
      for (int64_t d = 0; d < head_size; d += kLanes) {
        const int lanes = static_cast<int>(min_of(kLanes, head_size - d));
        next.advance();
        F32 block[kLanes];
        for (int i = 0; i < kLanes; ++i) block[i] = load_up_to(keys.at<Cached>(t + i) + d, lanes);
        transpose(block);
        for (int i = 0; i < lanes; ++i) store(dst + (d + i) * kTokens + t, block[i]);
      }
    }
  }

  // tile[token][column]
  static void pack_values(void* tile, const TileRows& values, TilePrefetcher& next,
                          int64_t head_size) {
    float* dst = static_cast<float*>(tile);
    for (int t = 0; t < values.end; ++t) {
      next.advance();
      const Cached* src = values.at<Cached>(t);
      for_each_vector(head_size, [&](int64_t d, int lanes) {
        store(dst + t * columns(head_size) + d, load_up_to(src + d, lanes));
      });
    }
  }

  // scores[m][t] = sum over d of query[m][d] * key[t][d], d in order
  template <int M>
  static void score_rows(float* scores, const Query* query, const float* tile, int tokens,
                         TilePrefetcher& next, int64_t head_size) {
    constexpr int kVectors = 2;
    for (int t = 0; t < tokens; t += kVectors * kLanes) {
      F32 sum[M][kVectors];
      for (int m = 0; m < M; ++m) {
        for (int v = 0; v < kVectors; ++v) sum[m][v] = zero();
      }
      for (int64_t d = 0; d < head_size; ++d) {
        if (d % 8 == 0) next.advance();
        F32 key[kVectors];
        for (int v = 0; v < kVectors; ++v) key[v] = load(tile + d * kTokens + t + v * kLanes);
        for (int m = 0; m < M; ++m) {
          const F32 q = broadcast(query[m * head_size + d]);
          for (int v = 0; v < kVectors; ++v) sum[m][v] = fma(q, key[v], sum[m][v]);
        }
      }
      for (int m = 0; m < M; ++m) {
        for (int v = 0; v < kVectors; ++v) store(scores + m * kTokens + t + v * kLanes, sum[m][v]);
      }
    }
  }

  static void scores(float* scores, const Query* query, int64_t rows, const void* tile, int tokens,
                     TilePrefetcher& next, int64_t head_size) {
    for (int64_t r = 0; r < rows; r += 4) {
      QUIRE_DISPATCH_ROWS(min_of(4, rows - r), M,
                          score_rows<M>(scores + r * kTokens, query + r * head_size,
                                        static_cast<const float*>(tile), tokens, next, head_size));
    }
  }

  // acc[m][c] += sum over t of probs[m][t] * value[t][c], t in order
  template <int M, int Vectors>
  static void add_columns(float* acc, const float* probs, const float* tile, int tokens,
                          TilePrefetcher& next, int64_t stride) {
    F32 sum[M][Vectors];
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < Vectors; ++v) sum[m][v] = load(acc + m * stride + v * kLanes);
    }
    for (int t = 0; t < tokens; ++t) {
      if (t % 8 == 0) next.advance();
      F32 value[Vectors];
      for (int v = 0; v < Vectors; ++v) value[v] = load(tile + t * stride + v * kLanes);
      for (int m = 0; m < M; ++m) {
        const F32 p = broadcast(probs[m * kTokens + t]);
        for (int v = 0; v < Vectors; ++v) sum[m][v] = fma(p, value[v], sum[m][v]);
      }
    }
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < Vectors; ++v) store(acc + m * stride + v * kLanes, sum[m][v]);
    }
  }

  template <int M>
  static void add_rows(float* acc, const float* probs, const float* tile, int tokens,
                       TilePrefetcher& next, int64_t stride) {
    int64_t c = 0;
    for (; c + 2 * kLanes <= stride; c += 2 * kLanes)
      add_columns<M, 2>(acc + c, probs, tile + c, tokens, next, stride);
    if (c < stride) add_columns<M, 1>(acc + c, probs, tile + c, tokens, next, stride);
  }

  static void accumulate(float* acc, float* probs, int64_t rows, const void* tile, int tokens,
                         TilePrefetcher& next, int64_t head_size) {
    const int64_t stride = columns(head_size);
    for (int64_t r = 0; r < rows; r += 4) {
      QUIRE_DISPATCH_ROWS(min_of(4, rows - r), M,
                          add_rows<M>(acc + r * stride, probs + r * kTokens,
                                      static_cast<const float*>(tile), tokens, next, stride));
    }
  }

  static void add_values(float* acc, float* probs, int64_t rows, const TileRows& values, void* tile,
                         TilePrefetcher& next, int64_t head_size) {
    pack_values(tile, values, next, head_size);
    accumulate(acc, probs, rows, tile, values.end, next, head_size);
  }

  // out[d] = acc[d] * factor, rounded once. Adding zero turns -0, which depends on masked tokens,
  // into +0.
  static void write_row(T* out, const float* acc, float factor, int64_t head_size) {
    for_each_vector(head_size, [&](int64_t d, int lanes) {
      store_up_to(out + d, fma(load(acc + d), broadcast(factor), zero()), lanes);
    });
  }
};

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
