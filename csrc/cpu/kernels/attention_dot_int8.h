// Tiles of an int8 cache for AVX-512-BF16 dot products: every integer of a row is a bf16, so the
// products are those of attention_dot_bf16.h. Tiles have that layout too, except that columns of
// values keep their order.
#pragma once

#include "cpu/kernels/attention_dot_bf16.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

struct Int8DotTile : Bf16DotTile {
  using Cached = int8_t;

  static __m256i load_chunk(const Cached* p, int64_t d, int64_t head_size) {
    if (d + kChunk <= head_size) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + d));
    return _mm256_maskz_loadu_epi8((1u << (head_size - d)) - 1, p + d);
  }

  // tile[slab][group][e], each a vector; keys are 2^16 times as large
  static void pack_keys(void* tile, const TileRows& keys, TilePrefetcher& next, int64_t head_size) {
    const int64_t groups = head_size / kGroup;
    for (int slab = 0; slab * kSlab < keys.end; ++slab) {
      __m512i* dst = static_cast<__m512i*>(tile) + slab * groups * 4;
      for (int e = 0; e < 4; ++e) {
        const Cached* rows[4];
        for (int lane = 0; lane < 4; ++lane)
          rows[lane] = keys.at<Cached>(slab * kSlab + lane * 4 + e);
        next.advance();
        for (int64_t d = 0; d < head_size; d += kChunk) {
          __m256i r[4];
          for (int lane = 0; lane < 4; ++lane) r[lane] = load_chunk(rows[lane], d, head_size);
          const __m256i even01 = _mm256_unpacklo_epi64(r[0], r[1]);
          const __m256i odd01 = _mm256_unpackhi_epi64(r[0], r[1]);
          const __m256i even23 = _mm256_unpacklo_epi64(r[2], r[3]);
          const __m256i odd23 = _mm256_unpackhi_epi64(r[2], r[3]);
          const __m256i group[4] = {_mm256_permute2x128_si256(even01, even23, 0x20),
                                    _mm256_permute2x128_si256(odd01, odd23, 0x20),
                                    _mm256_permute2x128_si256(even01, even23, 0x31),
                                    _mm256_permute2x128_si256(odd01, odd23, 0x31)};
          for (int g = 0; g < 4 && d / kGroup + g < groups; ++g)
            _mm512_store_ps(dst + (d / kGroup + g) * 4 + e, large_pair_words(group[g]).v);
        }
      }
    }
  }

  static QUIRE_ALWAYS_INLINE void scores(float* scores, const Query* query, int64_t rows,
                                         const void* tile, int tokens, TilePrefetcher& next,
                                         int64_t head_size) {
    // Back from 2^16 times the keys.
    Bf16DotTile::scores(scores, query, rows, tile, tokens, next, head_size);
    const F32 factor = broadcast(0x1p-16f);
    for (int64_t i = 0; i < rows * kTokens; i += kLanes)
      store(scores + i, load(scores + i) * factor);
  }

  // Columns d .. d + 15 of two rows of n, pair by pair; zero beyond their end.
  static QUIRE_ALWAYS_INLINE __m512i value_words(const Cached* even, const Cached* odd, int64_t d,
                                                 int64_t n) {
    const int lanes = static_cast<int>(max_of(0, min_of(kLanes, n - d)));
    const F32 words = pair_words(load_up_to(even + d, lanes), load_up_to(odd + d, lanes));
    return _mm512_castps_si512(words.v);
  }

  // tile[pair of tokens][column vector]
  static void pack_values(void* tile, const TileRows& values, TilePrefetcher& next,
                          int64_t head_size) {
    __m512i* dst = static_cast<__m512i*>(tile);
    for (int t = 0; t < values.end; t += 2) {
      next.advance();
      const Cached* even = values.at<Cached>(t);
      const Cached* odd = values.at<Cached>(t + 1);
      for (int64_t d = 0; d < columns(head_size); d += kLanes)
        _mm512_store_si512(dst++, value_words(even, odd, d, head_size));
    }
  }

  // As Bf16DotTile::add_columns, with values converted on the way.
  template <int M, int Vectors>
  static QUIRE_ALWAYS_INLINE void add_unpacked(float* acc, const float* probs,
                                               const TileRows& values, int64_t c,
                                               TilePrefetcher& next, int64_t head_size) {
    const int64_t stride = columns(head_size);
    __m512 sum[M][Vectors];
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < Vectors; ++v)
        sum[m][v] = _mm512_load_ps(acc + m * stride + c + v * kLanes);
    }
    for (int t = 0; t < values.end; t += 2) {
      next.advance();
      const Cached* even = values.at<Cached>(t) + c;
      const Cached* odd = values.at<Cached>(t + 1) + c;
      __m512bh value[Vectors];
      for (int v = 0; v < Vectors; ++v)
        value[v] = as_bf16(value_words(even, odd, v * kLanes, head_size - c));
      for (int m = 0; m < M; ++m) {
        const __m512bh p =
            as_bf16(_mm512_set1_epi32(reinterpret_cast<const int*>(probs + m * kTokens)[t / 2]));
        for (int v = 0; v < Vectors; ++v) sum[m][v] = _mm512_dpbf16_ps(sum[m][v], value[v], p);
      }
    }
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < Vectors; ++v)
        _mm512_store_ps(acc + m * stride + c + v * kLanes, sum[m][v]);
    }
  }

  template <int M>
  static QUIRE_ALWAYS_INLINE void add_unpacked_rows(float* acc, float* probs,
                                                    const TileRows& values, TilePrefetcher& next,
                                                    int64_t head_size) {
    constexpr int kVectors = M == 1 ? 8 : 4;
    for (int m = 0; m < M; ++m) round_probs(probs + m * kTokens);
    int64_t c = 0;
    for (; c + kVectors * kLanes <= columns(head_size); c += kVectors * kLanes)
      add_unpacked<M, kVectors>(acc, probs, values, c, next, head_size);
    for (; c < columns(head_size); c += 2 * kLanes)
      add_unpacked<M, 2>(acc, probs, values, c, next, head_size);
  }

  // Packing a tile pays if several groups of rows read it; the additions are the same.
  static void add_values(float* acc, float* probs, int64_t rows, const TileRows& values, void* tile,
                         TilePrefetcher& next, int64_t head_size) {
    if (rows > 4) {
      pack_values(tile, values, next, head_size);
      accumulate(acc, probs, rows, tile, values.end, next, head_size);
    } else {
      QUIRE_DISPATCH_ROWS(rows, M, add_unpacked_rows<M>(acc, probs, values, next, head_size));
    }
  }

  static void write_row(T* out, const float* acc, float factor, int64_t head_size) {
    Fp32Tile<T>::write_row(out, acc, factor, head_size);
  }
};

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
