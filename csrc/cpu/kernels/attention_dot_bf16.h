// The two products of an attention tile with AVX-512-BF16 dot products: pairs of bf16 are
// multiplied and added to fp32.
//
// Keys are regrouped so that a vector holds 8 elements of 4 tokens, token 4L + e in 128-bit lane L
// of vector e:
//   score = sum over the head's groups of 8, then over the 4 pairs within a lane
// Values are interleaved by pairs of tokens, so one instruction adds two tokens to 16 columns; a
// chunk of 32 columns is kept as the two vectors that the unpack instructions yield and put in
// order on the way out.
#pragma once

#include "cpu/kernels/attention_fp32.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

inline __m512bh as_bf16(__m512i x) {
  return (__m512bh)x;
}

struct Bf16DotTile {
  using T = bf16;
  using Cached = bf16;
  using Query = bf16;
  static constexpr int kTokens = 64;
  static constexpr int kSlab = 16;   // tokens whose scores fill one vector
  static constexpr int kGroup = 8;   // elements of a 128-bit lane
  static constexpr int kChunk = 32;  // elements of a vector

  static int64_t columns(int64_t head_size) { return round_up(head_size, kChunk); }
  static int64_t query_columns(int64_t head_size) { return head_size; }
  static int64_t tile_bytes(int64_t head_size) {
    return kTokens * columns(head_size) * static_cast<int64_t>(sizeof(T));
  }

  static void pack_query(Query* dst, const T* src, int64_t head_size) {
    memcpy(dst, src, head_size * sizeof(T));
  }

  static __m512i load_chunk(const T* p, int64_t d, int64_t head_size) {
    if (d + kChunk <= head_size) return _mm512_loadu_si512(p + d);
    return _mm512_maskz_loadu_epi16((1u << (head_size - d)) - 1, p + d);
  }

  // tile[slab][group][e], each a vector
  static void pack_keys(void* tile, const TileRows& keys, TilePrefetcher& next, int64_t head_size) {
    const int64_t groups = head_size / kGroup;
    for (int slab = 0; slab * kSlab < keys.end; ++slab) {
      __m512i* dst = static_cast<__m512i*>(tile) + slab * groups * 4;
      for (int e = 0; e < 4; ++e) {
        const T* rows[4];
        for (int lane = 0; lane < 4; ++lane) {
          const int token = slab * kSlab + lane * 4 + e;
          rows[lane] = keys.at<T>(token);
        }
        next.advance();
        for (int64_t d = 0; d < head_size; d += kChunk) {
          __m512i r[4];
          for (int lane = 0; lane < 4; ++lane) r[lane] = load_chunk(rows[lane], d, head_size);
          const __m512i u0 = _mm512_shuffle_i32x4(r[0], r[1], 0x44);
          const __m512i u1 = _mm512_shuffle_i32x4(r[0], r[1], 0xee);
          const __m512i u2 = _mm512_shuffle_i32x4(r[2], r[3], 0x44);
          const __m512i u3 = _mm512_shuffle_i32x4(r[2], r[3], 0xee);
          const int64_t group = d / kGroup;
          _mm512_store_si512(dst + group * 4 + e, _mm512_shuffle_i32x4(u0, u2, 0x88));
          if (group + 1 < groups)
            _mm512_store_si512(dst + (group + 1) * 4 + e, _mm512_shuffle_i32x4(u0, u2, 0xdd));
          if (group + 2 < groups)
            _mm512_store_si512(dst + (group + 2) * 4 + e, _mm512_shuffle_i32x4(u1, u3, 0x88));
          if (group + 3 < groups)
            _mm512_store_si512(dst + (group + 3) * 4 + e, _mm512_shuffle_i32x4(u1, u3, 0xdd));
        }
      }
    }
  }

  // Sums the 4 elements of each lane of 4 vectors: element 4L + e of the result is lane L of vector
  // e.
  static __m512 sum_lanes(const __m512 (&x)[4]) {
    const __m512 s0 = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const __m512 s1 = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    const __m512 even =
        _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(s0), _mm512_castps_pd(s1)));
    const __m512 odd =
        _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(s0), _mm512_castps_pd(s1)));
    return _mm512_add_ps(even, odd);
  }

  template <int M>
  static QUIRE_ALWAYS_INLINE void score_slab(float* scores, const Query* query, const __m512i* tile,
                                             TilePrefetcher& next, int64_t head_size) {
    __m512 sum[M][4];
    for (int m = 0; m < M; ++m) {
      for (int e = 0; e < 4; ++e) sum[m][e] = _mm512_setzero_ps();
    }
    for (int64_t group = 0; group < head_size / kGroup; ++group) {
      next.advance();
      __m512bh key[4];
      for (int e = 0; e < 4; ++e) key[e] = as_bf16(_mm512_load_si512(tile + group * 4 + e));
      for (int m = 0; m < M; ++m) {
        const T* q = query + m * head_size + group * kGroup;
        const __m512bh repeated =
            as_bf16(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q))));
        for (int e = 0; e < 4; ++e) sum[m][e] = _mm512_dpbf16_ps(sum[m][e], key[e], repeated);
      }
    }
    for (int m = 0; m < M; ++m) _mm512_storeu_ps(scores + m * kTokens, sum_lanes(sum[m]));
  }

  static QUIRE_ALWAYS_INLINE void scores(float* scores, const Query* query, int64_t rows,
                                         const void* tile, int tokens, TilePrefetcher& next,
                                         int64_t head_size) {
    for (int slab = 0; slab * kSlab < tokens; ++slab) {
      const __m512i* keys = static_cast<const __m512i*>(tile) + slab * (head_size / kGroup) * 4;
      for (int64_t r = 0; r < rows; r += 4) {
        QUIRE_DISPATCH_ROWS(min_of(4, rows - r), M,
                            score_slab<M>(scores + r * kTokens + slab * kSlab,
                                          query + r * head_size, keys, next, head_size));
      }
    }
  }

  // tile[pair of tokens][column vector]
  static void pack_values(void* tile, const TileRows& values, TilePrefetcher& next,
                          int64_t head_size) {
    __m512i* dst = static_cast<__m512i*>(tile);
    for (int t = 0; t < values.end; t += 2) {
      next.advance();
      const T* even = values.at<T>(t);
      const T* odd = values.at<T>(t + 1);
      for (int64_t d = 0; d < head_size; d += kChunk) {
        const __m512i a = load_chunk(even, d, head_size);
        const __m512i b = load_chunk(odd, d, head_size);
        _mm512_store_si512(dst++, _mm512_unpacklo_epi16(a, b));
        _mm512_store_si512(dst++, _mm512_unpackhi_epi16(a, b));
      }
    }
  }

  // acc[m][c] += sum over pairs of probs[m][2p] value[2p][c] + probs[m][2p + 1] value[2p + 1][c]
  template <int M, int Vectors>
  static QUIRE_ALWAYS_INLINE void add_columns(float* acc, const float* probs, const __m512i* tile,
                                              int pairs, TilePrefetcher& next, int64_t stride) {
    __m512 sum[M][Vectors];
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < Vectors; ++v) sum[m][v] = _mm512_load_ps(acc + m * stride + v * kLanes);
    }
    for (int pair = 0; pair < pairs; ++pair) {
      next.advance();
      __m512bh value[Vectors];
      for (int v = 0; v < Vectors; ++v) {
        value[v] = as_bf16(_mm512_load_si512(tile + pair * (stride / kLanes) + v));
      }
      for (int m = 0; m < M; ++m) {
        const __m512bh p =
            as_bf16(_mm512_set1_epi32(reinterpret_cast<const int*>(probs + m * kTokens)[pair]));
        for (int v = 0; v < Vectors; ++v) sum[m][v] = _mm512_dpbf16_ps(sum[m][v], value[v], p);
      }
    }
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < Vectors; ++v) _mm512_store_ps(acc + m * stride + v * kLanes, sum[m][v]);
    }
  }

  template <int M>
  static QUIRE_ALWAYS_INLINE void add_rows(float* acc, const float* probs, const __m512i* tile,
                                           int pairs, TilePrefetcher& next, int64_t stride) {
    int64_t c = 0;
    const auto at = [&](int64_t column) { return tile + column / kLanes; };
    if constexpr (M == 1) {  // more columns instead of rows keep enough sums in flight
      for (; c + 8 * kLanes <= stride; c += 8 * kLanes)
        add_columns<M, 8>(acc + c, probs, at(c), pairs, next, stride);
    }
    for (; c + 4 * kLanes <= stride; c += 4 * kLanes)
      add_columns<M, 4>(acc + c, probs, at(c), pairs, next, stride);
    if (c < stride) add_columns<M, 2>(acc + c, probs, at(c), pairs, next, stride);
  }

  static void accumulate(float* acc, float* probs, int64_t rows, const void* tile, int tokens,
                         TilePrefetcher& next, int64_t head_size) {
    const int64_t stride = columns(head_size);
    for (int64_t r = 0; r < rows; ++r) round_probs(probs + r * kTokens);
    for (int64_t r = 0; r < rows; r += 4) {
      QUIRE_DISPATCH_ROWS(
          min_of(4, rows - r), M,
          add_rows<M>(acc + r * stride, probs + r * kTokens, static_cast<const __m512i*>(tile),
                      (tokens + 1) / 2, next, stride));
    }
  }

  static void add_values(float* acc, float* probs, int64_t rows, const TileRows& values, void* tile,
                         TilePrefetcher& next, int64_t head_size) {
    pack_values(tile, values, next, head_size);
    accumulate(acc, probs, rows, tile, values.end, next, head_size);
  }

  // Converts a row of probabilities to bf16, in the first half of its own memory.
  static void round_probs(float* row) {
    __m512 p[4];
    for (int i = 0; i < 4; ++i) p[i] = _mm512_load_ps(row + i * kLanes);
    for (int i = 0; i < 2; ++i) {
      _mm512_store_si512(row + i * kLanes, (__m512i)_mm512_cvtne2ps_pbh(p[2 * i + 1], p[2 * i]));
    }
  }

  // See Fp32Tile::write_row for the addition of zero.
  static void write_row(T* out, const float* acc, float factor, int64_t head_size) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    for (int64_t d = 0; d < head_size; d += kLanes) {
      const float* chunk = acc + d / kChunk * kChunk;
      const __m512i index = _mm512_add_epi32(first, _mm512_set1_epi32(d % kChunk == 0 ? 0 : 8));
      const F32 ordered = {
          _mm512_permutex2var_ps(_mm512_load_ps(chunk), index, _mm512_load_ps(chunk + kLanes))};
      store_up_to(out + d, fma(ordered, broadcast(factor), zero()),
                  static_cast<int>(min_of(kLanes, head_size - d)));
    }
  }
};

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
