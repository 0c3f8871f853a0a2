// The two products of an attention tile in fp32 vectors, for every element type and ISA. See
// attention.h for how tiles make up a row's result.
#pragma once

#include "cpu/kernels/norm.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

// Rows of a tile of keys or values: token t lies at rows[t] + offset when begin <= t < end and is
// zero otherwise.
template <typename T>
struct TileRows {
  const T* const* rows;
  int64_t offset;
  int begin;
  int end;
  const T* zero_row;

  const T* at(int t) const { return t >= begin && t < end ? rows[t] + offset : zero_row; }
};

// Cache lines of the tile that comes next, asked for row by row while the present one is computed.
template <typename T>
struct NextTile {
  const T* const* rows;  // null when there is none
  int64_t offset;
  int end;
  int lines;

  void prefetch_row(int t) const {
    if (rows == nullptr || t >= end) return;
    const char* p = reinterpret_cast<const char*>(rows[t] + offset);
    for (int i = 0; i < lines; ++i) prefetch(p + i * 64);
  }
};

// Products over M query rows at once reuse what they load; a row's additions are the same for every
// M.
template <typename Element>
struct Fp32Tile {
  using T = Element;
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
  static void pack_keys(void* tile, const TileRows<T>& keys, const NextTile<T>& next,
                        int64_t head_size) {
    float* dst = static_cast<float*>(tile);
    for (int t = 0; t < keys.end; t += kLanes) {
      for (int i = 0; i < kLanes; ++i) next.prefetch_row(t + i);
      for (int64_t d = 0; d < head_size; d += kLanes) {
        const int lanes = static_cast<int>(min_of(kLanes, head_size - d));
        F32 block[kLanes];
        for (int i = 0; i < kLanes; ++i) block[i] = load_up_to(keys.at(t + i) + d, lanes);
        transpose(block);
        for (int i = 0; i < lanes; ++i) store(dst + (d + i) * kTokens + t, block[i]);
      }
    }
  }

  // tile[token][column]
  static void pack_values(void* tile, const TileRows<T>& values, const NextTile<T>& next,
                          int64_t head_size) {
    float* dst = static_cast<float*>(tile);
    for (int t = 0; t < values.end; ++t) {
      next.prefetch_row(t);
      const T* src = values.at(t);
      for_each_vector(head_size, [&](int64_t d, int lanes) {
        store(dst + t * columns(head_size) + d, load_up_to(src + d, lanes));
      });
    }
  }

  // scores[m][t] = sum over d of query[m][d] * key[t][d], d in order
  template <int M>
  static void score_rows(float* scores, const Query* query, const float* tile, int tokens,
                         int64_t head_size) {
    constexpr int kVectors = 2;
    for (int t = 0; t < tokens; t += kVectors * kLanes) {
      F32 sum[M][kVectors];
      for (int m = 0; m < M; ++m) {
        for (int v = 0; v < kVectors; ++v) sum[m][v] = zero();
      }
      for (int64_t d = 0; d < head_size; ++d) {
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
                     int64_t head_size) {
    for (int64_t r = 0; r < rows; r += 4) {
      QUIRE_DISPATCH_ROWS(min_of(4, rows - r), M,
                          score_rows<M>(scores + r * kTokens, query + r * head_size,
                                        static_cast<const float*>(tile), tokens, head_size));
    }
  }

  // acc[m][c] += sum over t of probs[m][t] * value[t][c], t in order
  template <int M, int Vectors>
  static void add_columns(float* acc, const float* probs, const float* tile, int tokens,
                          int64_t stride) {
    F32 sum[M][Vectors];
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < Vectors; ++v) sum[m][v] = load(acc + m * stride + v * kLanes);
    }
    for (int t = 0; t < tokens; ++t) {
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
                       int64_t stride) {
    int64_t c = 0;
    for (; c + 2 * kLanes <= stride; c += 2 * kLanes)
      add_columns<M, 2>(acc + c, probs, tile + c, tokens, stride);
    if (c < stride) add_columns<M, 1>(acc + c, probs, tile + c, tokens, stride);
  }

  static void accumulate(float* acc, float* probs, int64_t rows, const void* tile, int tokens,
                         int64_t head_size) {
    const int64_t stride = columns(head_size);
    for (int64_t r = 0; r < rows; r += 4) {
      QUIRE_DISPATCH_ROWS(min_of(4, rows - r), M,
                          add_rows<M>(acc + r * stride, probs + r * kTokens,
                                      static_cast<const float*>(tile), tokens, stride));
    }
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
