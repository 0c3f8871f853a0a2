// The register tile of dense layers in int8: exact sums in int32, so every instruction set has the
// same bits whatever their order. docs/numerics.md has the roundings behind them.
//
// Weights w are stored as w + 128, without a sign, as the instruction that multiplies fours of
// bytes (VPDPBUSD) wants them: -128 times the sum of the row's elements is added at the end.
#pragma once

#include "cpu/kernels/linear_tile.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr int kFour = kInt8Four;
constexpr int kFourBytes = kFour * kPanel;  // [feature][k]

// What a part of a row in int8 is a multiple of, and what is added to its sums.
struct RowScale {
  float scale;
  int32_t offset;
};

template <>
struct XRows<int8_t> {
  const int8_t* data;
  int64_t block_stride;
  const RowScale* scales;
  int64_t scale_stride;

  XRows from(int64_t row) const {
    return {data + row * kXBlock, block_stride, scales + row * scale_stride, scale_stride};
  }
};

// kLanes sums, and fours of bytes of as many features.
#if defined(__AVX512F__)
using I32 = __m512i;

QUIRE_ALWAYS_INLINE I32 broadcast_word(int32_t x) {
  return _mm512_set1_epi32(x);
}
QUIRE_ALWAYS_INLINE I32 load_fours(const char* p) {
  return _mm512_loadu_si512(p);
}
QUIRE_ALWAYS_INLINE I32 add_word(I32 x, int32_t y) {
  return _mm512_add_epi32(x, _mm512_set1_epi32(y));
}
QUIRE_ALWAYS_INLINE F32 to_floats(I32 x) {
  return {_mm512_cvtepi32_ps(x)};
}
// In place, as accumulate is.
QUIRE_ALWAYS_INLINE void add_products(I32& sum, I32 weights, I32 x) {
#if defined(__AVX512VNNI__)
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(x));
#else
  const I32 low = _mm512_set1_epi16(0xff);
  const I32 even = _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8);
  sum = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_and_si512(weights, low), even));
  const I32 odd = _mm512_srai_epi16(x, 8);
  sum = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_srli_epi16(weights, 8), odd));
#endif
}
#elif defined(__AVX2__)
using I32 = __m256i;

QUIRE_ALWAYS_INLINE I32 broadcast_word(int32_t x) {
  return _mm256_set1_epi32(x);
}
QUIRE_ALWAYS_INLINE I32 load_fours(const char* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
QUIRE_ALWAYS_INLINE I32 add_word(I32 x, int32_t y) {
  return _mm256_add_epi32(x, _mm256_set1_epi32(y));
}
QUIRE_ALWAYS_INLINE F32 to_floats(I32 x) {
  return {_mm256_cvtepi32_ps(x)};
}
QUIRE_ALWAYS_INLINE void add_products(I32& sum, I32 weights, I32 x) {
  const I32 low = _mm256_set1_epi16(0xff);
  const I32 even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_and_si256(weights, low), even));
  const I32 odd = _mm256_srai_epi16(x, 8);
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_srli_epi16(weights, 8), odd));
}
#else
struct I32 {
  uint32_t v[kLanes];  // sums may wrap on their way, as those of vectors do
};

QUIRE_ALWAYS_INLINE I32 broadcast_word(int32_t x) {
  I32 r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = x;
  return r;
}
QUIRE_ALWAYS_INLINE I32 load_fours(const char* p) {
  I32 r;
  memcpy(r.v, p, sizeof r);
  return r;
}
QUIRE_ALWAYS_INLINE I32 add_word(I32 x, int32_t y) {
  for (int i = 0; i < kLanes; ++i) x.v[i] += y;
  return x;
}
QUIRE_ALWAYS_INLINE F32 to_floats(const I32& x) {
  F32 r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = static_cast<float>(static_cast<int32_t>(x.v[i]));
  return r;
}
QUIRE_ALWAYS_INLINE void add_products(I32& sum, const I32& weights, const I32& x) {
  uint8_t w[kFour * kLanes];
  int8_t four[kFour];
  memcpy(w, weights.v, sizeof w);
  memcpy(four, x.v, sizeof four);
  for (int i = 0; i < kLanes; ++i) {
    for (int k = 0; k < kFour; ++k) sum.v[i] += static_cast<uint32_t>(w[kFour * i + k] * four[k]);
  }
}
#endif

// kVectors * kLanes features, from `column`, over a whole part of K; behind it in the
// panel lie the scales of the features.
template <int kRows, int kVectors, bool kIsStream>
void multiply_int8_tile(const XRows<int8_t>& rows, const TileWeights& weights, int column,
                        const TileSums& out) {
  constexpr int kFoursOfBlock = kXBlock / kFour;
  I32 sum[kRows][kVectors];
#pragma GCC unroll 64
  for (int i = 0; i < kRows * kVectors; ++i) (&sum[0][0])[i] = broadcast_word(0);
  const char* data = weights.data;
  const char* next = weights.next;
  for (int step = 0; step < weights.num_steps; ++step) {
    const int8_t* x =
        rows.data + step / kFoursOfBlock * rows.block_stride + step % kFoursOfBlock * kFour;
    fetch_weights<kFourBytes, kIsStream>(data, next);
    I32 weight[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) weight[v] = load_fours(data + kFour * (column + v * kLanes));
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      int32_t four;
      memcpy(&four, x + row * kXBlock, sizeof four);
      const I32 elements = broadcast_word(four);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) add_products(sum[row][v], weight[v], elements);
    }
    data += kFourBytes;
  }
  F32 result[kRows][kVectors];
  const float* scales = reinterpret_cast<const float*>(data) + column;
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
    const RowScale& of_row = rows.scales[row * rows.scale_stride];
    const F32 scale = broadcast(of_row.scale);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      result[row][v] =
          to_floats(add_word(sum[row][v], of_row.offset)) * (scale * load(scales + v * kLanes));
  }
  store_sums(result, column, out);
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
