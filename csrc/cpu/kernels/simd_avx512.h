// Vectors of floats in AVX-512 (F, BW, DQ, VL). See simd_scalar.h for what each function means.
#pragma once

#include <immintrin.h>

#include "cpu/kernels/element.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr int kLanes = 16;

struct F32 {
  __m512 v;
};

inline __mmask16 first_lanes(int n) {
  return static_cast<__mmask16>((1u << n) - 1);
}

inline F32 broadcast(float x) {
  return {_mm512_set1_ps(x)};
}
inline F32 zero() {
  return {_mm512_setzero_ps()};
}
inline F32 iota() {
  return {_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}

inline F32 from_bf16_bits(__m256i raw) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}

inline __m256i to_bf16_bits(F32 x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  const __m512i picked = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(picked, 16));
}

inline F32 load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline F32 load(const bf16* p) {
  return from_bf16_bits(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F32 load(const f16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

inline F32 from_int8(__m128i raw) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(raw))};
}
inline F32 load(const int8_t* p) {
  return from_int8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline F32 load_partial(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
inline F32 load_partial(const bf16* p, int n) {
  return from_bf16_bits(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
inline F32 load_partial(const f16* p, int n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}

inline F32 load_partial(const int8_t* p, int n) {
  return from_int8(_mm_maskz_loadu_epi8(first_lanes(n), p));
}

inline __m256i to_f16_bits(F32 x) {
  return _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT);
}

inline F32 load_words(const void* p) {
  return {_mm512_loadu_ps(p)};
}

struct Pairs {
  F32 even;
  F32 odd;
};

inline Pairs load_pairs(const void* p) {
  const __m512i words = _mm512_loadu_si512(p);
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(words, 16))},
          {_mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(~0xffff)))}};
}

inline F32 pair_words(F32 even, F32 odd) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even.v), 16);
  return {
      _mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_castps_si512(odd.v)))};
}

// 16 bits are converted where they lie.
inline F32 large_pair_words(__m256i x) {
  const __m512i words = _mm512_cvtepi8_epi16(x);
  const __m512i odd = _mm512_and_si512(words, _mm512_set1_epi32(~0xffff));
  return pair_words({_mm512_cvtepi32_ps(_mm512_slli_epi32(words, 16))}, {_mm512_cvtepi32_ps(odd)});
}
inline F32 large_pair_words(const int8_t* p) {
  return large_pair_words(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

inline void store(float* p, F32 x) {
  _mm512_storeu_ps(p, x.v);
}
inline void store(bf16* p, F32 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16_bits(x));
}
inline void store(f16* p, F32 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_f16_bits(x));
}

inline void store(int8_t* p, F32 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

inline void store_partial(float* p, F32 x, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), x.v);
}
inline void store_partial(bf16* p, F32 x, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), to_bf16_bits(x));
}
inline void store_partial(f16* p, F32 x, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), to_f16_bits(x));
}

inline void store_partial(int8_t* p, F32 x, int n) {
  _mm_mask_storeu_epi8(p, first_lanes(n), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

inline F32 operator+(F32 a, F32 b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline F32 operator-(F32 a, F32 b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline F32 operator*(F32 a, F32 b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline F32 operator/(F32 a, F32 b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline F32 fma(F32 a, F32 b, F32 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline F32 max(F32 a, F32 b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline F32 min(F32 a, F32 b) {
  return {_mm512_min_ps(a.v, b.v)};
}
inline F32 abs(F32 a) {
  return {_mm512_abs_ps(a.v)};
}
inline F32 round_even(F32 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline F32 pow2(F32 n) {
  const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}
inline F32 select_less(F32 a, F32 b, F32 x, F32 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}

// The compiler chooses the order of the intrinsics' own reductions; this order is fixed.
inline float reduce_add(F32 a) {
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

inline float reduce_max(F32 a) {
  const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}

inline void transpose(F32* rows) {
  __m512 a[16];
  __m512 b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps(rows[i].v, rows[i + 1].v);
    a[i + 1] = _mm512_unpackhi_ps(rows[i].v, rows[i + 1].v);
  }
  for (int i = 0; i < 16; i += 4) {  // b[4q + c]: lane L holds column 4L + c of rows 4q .. 4q + 3
    b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int c = 0; c < 4; ++c) {
    const __m512 u0 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x44);
    const __m512 u1 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xee);
    const __m512 u2 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x44);
    const __m512 u3 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xee);
    rows[c].v = _mm512_shuffle_f32x4(u0, u2, 0x88);
    rows[4 + c].v = _mm512_shuffle_f32x4(u0, u2, 0xdd);
    rows[8 + c].v = _mm512_shuffle_f32x4(u1, u3, 0x88);
    rows[12 + c].v = _mm512_shuffle_f32x4(u1, u3, 0xdd);
  }
}

// Into the second-level cache: kv pages come faster that way than into the first.
inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
