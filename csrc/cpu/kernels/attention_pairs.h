// The two products of an attention tile of bf16 queries in plain vectors, with the bits of the dot
// product instructions for bf16 (attention_dot_bf16.h): their products go pair by pair, the odd
// element of a pair first.
//
//   score = (s0 + s2) + (s1 + s3), where s_e takes the pairs e, e + 4, e + 8, ... of the head
//   acc   takes the tokens of a tile pair by pair, their probabilities rounded to bf16
//
// Tiles hold pairs of bf16, half the bytes of floats, and are widened as they are read.
#pragma once

#include "cpu/kernels/attention_fp32.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

template <typename CacheElement>
struct PairTile {
  using T = bf16;
  using Cached = CacheElement;
  using Query = float;
  static constexpr int kTokens = 64;
  static constexpr int kChains = 4;  // partial sums of a score
  static constexpr bool kIsInt8 = sizeof(Cached) == 1;
  static constexpr int kScoreRows = kLanes == 16 ? 4 : 2;  // whose partial sums fit in registers

  static int64_t columns(int64_t head_size) { return round_up(head_size, kLanes); }
  static int64_t query_columns(int64_t head_size) { return head_size; }
  static int64_t tile_bytes(int64_t head_size) {
    return kTokens * columns(head_size) * static_cast<int64_t>(sizeof(T));
  }

  static void pack_query(Query* dst, const T* src, int64_t head_size) {
    for (int64_t d = 0; d < head_size; ++d) dst[d] = to_float(src[d]);
  }

  static F32 words(const bf16* p) { return load_words(p); }
  static F32 words(const int8_t* p) { return large_pair_words(p); }

  // Words of `count` pairs of a key, zero beyond.
  static QUIRE_ALWAYS_INLINE F32 key_words(const Cached* p, int count) {
    if (count == kLanes) return words(p);
    Cached buffer[2 * kLanes] = {};
    memcpy(buffer, p, 2 * count * sizeof(Cached));
    return words(buffer);
  }

  // tile[pair of elements][token]; keys of int8 are 2^16 times as large
  static void pack_keys(void* tile, const TileRows& keys, TilePrefetcher& next, int64_t head_size) {
    auto* dst = static_cast<float*>(tile);
    const int64_t pairs = head_size / 2;
    for (int t = 0; t < keys.end; t += kLanes) {
      const Cached* rows[kLanes];
      for (int i = 0; i < kLanes; ++i) rows[i] = keys.at<Cached>(t + i);
      for (int64_t d = 0; d < pairs; d += kLanes) {
        const int count = static_cast<int>(min_of(kLanes, pairs - d));
        next.advance();
        F32 block[kLanes];
        for (int i = 0; i < kLanes; ++i) block[i] = key_words(rows[i] + 2 * d, count);
        transpose(block);
        for (int i = 0; i < count; ++i) store(dst + (d + i) * kTokens + t, block[i]);
      }
    }
  }

  template <int M>
  static void score_rows(float* scores, const Query* query, const float* tile, int tokens,
                         TilePrefetcher& next, int64_t head_size) {
    constexpr int kVectors = 2 * M <= kScoreRows ? 2 : 1;
    for (int t = 0; t < tokens; t += kVectors * kLanes) {
      F32 sum[M][kChains][kVectors];
      for (int m = 0; m < M; ++m) {
        for (int e = 0; e < kChains; ++e) {
          for (int v = 0; v < kVectors; ++v) sum[m][e][v] = zero();
        }
      }
      for (int64_t d = 0; d < head_size; d += 2 * kChains) {
        next.advance();
        for (int e = 0; e < kChains; ++e) {
          for (int v = 0; v < kVectors; ++v) {
            const Pairs key = load_pairs(tile + (d / 2 + e) * kTokens + t + v * kLanes);
            for (int m = 0; m < M; ++m) {
              const Query* q = query + m * head_size + d + 2 * e;
              F32& s = sum[m][e][v];
              s = fma(broadcast(q[0]), key.even, fma(broadcast(q[1]), key.odd, s));
            }
          }
        }
      }
      for (int m = 0; m < M; ++m) {
        for (int v = 0; v < kVectors; ++v) {
          F32 score = (sum[m][0][v] + sum[m][2][v]) + (sum[m][1][v] + sum[m][3][v]);
          if constexpr (kIsInt8) score = score * broadcast(0x1p-16f);
          store(scores + m * kTokens + t + v * kLanes, score);
        }
      }
    }
  }

  static void scores(float* scores, const Query* query, int64_t rows, const void* tile, int tokens,
                     TilePrefetcher& next, int64_t head_size) {
    for (int64_t r = 0; r < rows; r += kScoreRows) {
      QUIRE_DISPATCH_ROWS(min_of(kScoreRows, rows - r), M,
                          score_rows<M>(scores + r * kTokens, query + r * head_size,
                                        static_cast<const float*>(tile), tokens, next, head_size));
    }
  }

  static void round_probs(float* row) {
    bf16 rounded[kTokens];
    for (int t = 0; t < kTokens; t += kLanes) store(rounded + t, load(row + t));
    for (int t = 0; t < kTokens; t += kLanes) store(row + t, load(rounded + t));
  }

  // acc[m][c] += sum over pairs of tokens, which load(pair, vector) returns, of
  // probs[m][2p + 1] value[2p + 1][c], then probs[m][2p] value[2p][c]
  template <int M, int Vectors, typename Load>
  static QUIRE_ALWAYS_INLINE void add_columns(float* acc, const float* probs, int pairs,
                                              TilePrefetcher& next, int64_t stride,
                                              const Load& load_values) {
    F32 sum[M][Vectors];
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < Vectors; ++v) sum[m][v] = load(acc + m * stride + v * kLanes);
    }
    for (int pair = 0; pair < pairs; ++pair) {
      next.advance();
      for (int v = 0; v < Vectors; ++v) {
        const Pairs value = load_values(pair, v);
        for (int m = 0; m < M; ++m) {
          const float* p = probs + m * kTokens + 2 * pair;
          F32& s = sum[m][v];
          s = fma(broadcast(p[0]), value.even, fma(broadcast(p[1]), value.odd, s));
        }
      }
    }
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < Vectors; ++v) store(acc + m * stride + v * kLanes, sum[m][v]);
    }
  }

  // Of values in the cache, widened on the way.
  template <int M>
  static void add_cached(float* acc, float* probs, const TileRows& values, TilePrefetcher& next,
                         int64_t head_size) {
    constexpr int kVectors = M == 1 ? 8 : M == 2 ? 4 : 2;  // keep enough sums in flight
    const int64_t stride = columns(head_size);
    const int pairs = (values.end + 1) / 2;
    for (int m = 0; m < M; ++m) round_probs(probs + m * kTokens);
    int64_t c = 0;
    for (; c + kVectors * kLanes <= head_size; c += kVectors * kLanes) {
      add_columns<M, kVectors>(acc + c, probs, pairs, next, stride, [&](int pair, int v) -> Pairs {
        return {load(values.at<Cached>(2 * pair) + c + v * kLanes),
                load(values.at<Cached>(2 * pair + 1) + c + v * kLanes)};
      });
    }
    for (; c < head_size; c += kLanes) {
      const int lanes = static_cast<int>(min_of(kLanes, head_size - c));
      add_columns<M, 1>(acc + c, probs, pairs, next, stride, [&](int pair, int) -> Pairs {
        return {load_up_to(values.at<Cached>(2 * pair) + c, lanes),
                load_up_to(values.at<Cached>(2 * pair + 1) + c, lanes)};
      });
    }
  }

  // tile[pair of tokens][column]
  static void pack_values(void* tile, const TileRows& values, TilePrefetcher& next,
                          int64_t head_size) {
    auto* dst = static_cast<float*>(tile);
    for (int t = 0; t < values.end; t += 2, dst += columns(head_size)) {
      next.advance();
      const Cached* even = values.at<Cached>(t);
      const Cached* odd = values.at<Cached>(t + 1);
      for_each_vector(head_size, [&](int64_t d, int lanes) {
        store(dst + d, pair_words(load_up_to(even + d, lanes), load_up_to(odd + d, lanes)));
      });
    }
  }

  template <int M>
  static void add_packed(float* acc, const float* probs, const float* tile, int pairs,
                         TilePrefetcher& next, int64_t stride) {
    const auto at = [&](int64_t c) {
      return [=](int pair, int v) { return load_pairs(tile + pair * stride + c + v * kLanes); };
    };
    int64_t c = 0;
    for (; c + 2 * kLanes <= stride; c += 2 * kLanes)
      add_columns<M, 2>(acc + c, probs, pairs, next, stride, at(c));
    if (c < stride) add_columns<M, 1>(acc + c, probs, pairs, next, stride, at(c));
  }

  // Packing a tile pays if several groups of rows read it; the additions are the same.
  static void add_values(float* acc, float* probs, int64_t rows, const TileRows& values, void* tile,
                         TilePrefetcher& next, int64_t head_size) {
    if (rows <= 4) {
      QUIRE_DISPATCH_ROWS(rows, M, add_cached<M>(acc, probs, values, next, head_size));
      return;
    }
    pack_values(tile, values, next, head_size);
    for (int64_t r = 0; r < rows; ++r) round_probs(probs + r * kTokens);
    const int64_t stride = columns(head_size);
    for (int64_t r = 0; r < rows; r += 4) {
      QUIRE_DISPATCH_ROWS(
          min_of(4, rows - r), M,
          add_packed<M>(acc + r * stride, probs + r * kTokens, static_cast<const float*>(tile),
                        (values.end + 1) / 2, next, stride));
    }
  }

  static void write_row(T* out, const float* acc, float factor, int64_t head_size) {
    Fp32Tile<T>::write_row(out, acc, factor, head_size);
  }
};

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
