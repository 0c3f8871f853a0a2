// Vectors of floats in AVX2 with FMA and F16C. See simd_scalar.h for what each function means.
#pragma once

#include <immintrin.h>

#include "cpu/kernels/element.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr int kLanes = 8;

struct F32 {
  __m256 v;
};

inline F32 broadcast(float x) {
  return {_mm256_set1_ps(x)};
}
inline F32 zero() {
  return {_mm256_setzero_ps()};
}
inline F32 iota() {
  return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7)};
}

inline F32 load(const float* p) {
  return {_mm256_loadu_ps(p)};
}
inline F32 load(const bf16* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16))};
}
inline F32 load(const f16* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

inline F32 load(const int8_t* p) {
  const __m128i raw = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(raw))};
}

inline F32 load_words(const void* p) {
  return {_mm256_loadu_ps(static_cast<const float*>(p))};
}

struct Pairs {
  F32 even;
  F32 odd;
};

inline Pairs load_pairs(const void* p) {
  const __m256i words = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(words, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(~0xffff)))}};
}

inline F32 pair_words(F32 even, F32 odd) {
  const __m256i low = _mm256_srli_epi32(_mm256_castps_si256(even.v), 16);
  return {_mm256_castsi256_ps(_mm256_blend_epi16(low, _mm256_castps_si256(odd.v), 0xaa))};
}

// 16 bits are converted where they lie.
inline F32 large_pair_words(const int8_t* p) {
  const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i odd = _mm256_and_si256(words, _mm256_set1_epi32(~0xffff));
  return pair_words({_mm256_cvtepi32_ps(_mm256_slli_epi32(words, 16))}, {_mm256_cvtepi32_ps(odd)});
}

inline void store(float* p, F32 x) {
  _mm256_storeu_ps(p, x.v);
}
inline void store(bf16* p, F32 x) {
  const __m256i bits = _mm256_castps_si256(x.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q);
  const __m256i picked =
      _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan)), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(picked, picked), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
inline void store(f16* p, F32 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}

inline void store(int8_t* p, F32 x) {
  const __m256i wide = _mm256_cvtps_epi32(x.v);
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

template <typename T>
inline F32 load_partial(const T* p, int n) {
  T buffer[kLanes] = {};
  for (int i = 0; i < n; ++i) buffer[i] = p[i];
  return load(buffer);
}

template <typename T>
inline void store_partial(T* p, F32 x, int n) {
  T buffer[kLanes];
  store(buffer, x);
  for (int i = 0; i < n; ++i) p[i] = buffer[i];
}

inline F32 operator+(F32 a, F32 b) {
  return {_mm256_add_ps(a.v, b.v)};
}
inline F32 operator-(F32 a, F32 b) {
  return {_mm256_sub_ps(a.v, b.v)};
}
inline F32 operator*(F32 a, F32 b) {
  return {_mm256_mul_ps(a.v, b.v)};
}
inline F32 operator/(F32 a, F32 b) {
  return {_mm256_div_ps(a.v, b.v)};
}
inline F32 fma(F32 a, F32 b, F32 c) {
  return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
inline F32 max(F32 a, F32 b) {
  return {_mm256_max_ps(a.v, b.v)};
}
inline F32 min(F32 a, F32 b) {
  return {_mm256_min_ps(a.v, b.v)};
}
inline F32 abs(F32 a) {
  return {_mm256_andnot_ps(_mm256_set1_ps(-0.f), a.v)};
}
inline F32 round_even(F32 a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline F32 pow2(F32 n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))};
}
inline F32 select_less(F32 a, F32 b, F32 x, F32 y) {
  return {_mm256_blendv_ps(y.v, x.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}

inline float reduce_add(F32 a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

inline float reduce_max(F32 a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}

inline void transpose(F32* rows) {
  __m256 a[8];
  __m256 b[8];
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_ps(rows[2 * i].v, rows[2 * i + 1].v);
    a[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i].v, rows[2 * i + 1].v);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i].v = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    rows[i + 4].v = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}

// Into the second-level cache: kv pages come faster that way than into the first.
inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
