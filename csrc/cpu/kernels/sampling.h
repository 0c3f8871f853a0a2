// Passes over a row of logits for the sampler (cpu/sampler.cpp). Every operation is a single IEEE
// operation or an explicit fused multiply-add, so that every ISA, and a GPU, draws the same token
// to the bit.
#pragma once

#include "cpu/kernel_table.h"
#include "cpu/kernels/element.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr int kPhiloxWords = 4;

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
inline void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c0 = counter[0];
  uint32_t c1 = counter[1];
  uint32_t c2 = counter[2];
  uint32_t c3 = counter[3];
  uint32_t k0 = key[0];
  uint32_t k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(c0) * 0xD2511F53u;
    const uint64_t p1 = static_cast<uint64_t>(c2) * 0xCD9E8D57u;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

// log(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1]; relative error 6e-9 before rounding.
inline float log1p_reduced(float f) {
  float p = -7.859545946e-02f;
  p = __builtin_fmaf(p, f, 1.288162172e-01f);
  p = __builtin_fmaf(p, f, -1.312876791e-01f);
  p = __builtin_fmaf(p, f, 1.418119669e-01f);
  p = __builtin_fmaf(p, f, -1.662455350e-01f);
  p = __builtin_fmaf(p, f, 2.000228614e-01f);
  p = __builtin_fmaf(p, f, -2.500081062e-01f);
  p = __builtin_fmaf(p, f, 3.333331645e-01f);
  return __builtin_fmaf(__builtin_fmaf(p, f, -0.5f), f * f, f);
}

// log(z) for normal z, with z - 1 given where that is known more exactly.
inline float log_from(float z, float z_minus_1) {
  const int32_t shifted = static_cast<int32_t>(bits_of(z)) - 0x3f3504f3;  // z / sqrt(1/2)
  const int32_t exponent = shifted >> 23;
  const float mantissa = float_of(bits_of(z) - (static_cast<uint32_t>(exponent) << 23));
  const float f = exponent == 0 ? z_minus_1 : mantissa - 1.f;
  return __builtin_fmaf(static_cast<float>(exponent), 0.693147182f, log1p_reduced(f));
}

float log(float z) {
  return log_from(z, z - 1.f);
}

// e^x for x <= 0; exactly 1 at 0 and 0 below -87.
inline float exp_negative(float x) {
  const float clamped = x > -88.f ? x : -88.f;
  const float n = (clamped * 1.44269504f + 12582912.f) - 12582912.f;
  const float r = __builtin_fmaf(n, 2.12194440e-4f, __builtin_fmaf(n, -0.693359375f, clamped));
  float p = 1.395048574e-03f;
  p = __builtin_fmaf(p, r, 8.368887939e-03f);
  p = __builtin_fmaf(p, r, 4.166620597e-02f);
  p = __builtin_fmaf(p, r, 1.666651815e-01f);
  p = __builtin_fmaf(p, r, 0.5f);
  const float e = __builtin_fmaf(p * r, r, r) + 1.f;
  const uint32_t power = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  const float value = e * float_of(power);
  return x > -87.f ? value : 0.f;
}

// -log(u) of the uniform u = 1 - (r + 1/2) 2^-32, accurate at both ends: an exponential variate.
inline float exponential(uint32_t r) {
  const float v = __builtin_fmaf(static_cast<float>(r), 0x1p-32f, 0x1p-33f);
  const float u = __builtin_fmaf(static_cast<float>(~r), 0x1p-32f, 0x1p-33f);
  return -log_from(u, -v);
}

// The race: of exponential clocks with rates e^x, clock i rings first with probability
// softmax(x)[i].
inline float race(float x, uint32_t r) {
  return exp_negative(x) / exponential(r);
}

inline bool is_kept(const SampleCut& cut, float x, int64_t index) {
  return x > cut.x_cut || (x == cut.x_cut && index <= cut.index_cut);
}

int64_t draw_token(const float* x, int64_t n, const SampleCut& cut, const DrawKey& draw) {
  constexpr int kBlocks = 16;  // Philox calls side by side
  constexpr int kTokens = kBlocks * kPhiloxWords;
  const uint32_t key[2] = {static_cast<uint32_t>(draw.seed),
                           static_cast<uint32_t>(draw.seed >> 32)};
  const uint64_t position = static_cast<uint64_t>(draw.position);
  float best = -1.f;
  int64_t winner = 0;
  for (int64_t base = 0; base < n; base += kTokens) {
    const int64_t count = min_of(kTokens, n - base);
    bool any = false;
    for (int64_t i = 0; i < count; ++i) any |= is_kept(cut, x[base + i], base + i);
    if (!any) continue;
    uint32_t random[kPhiloxWords][kBlocks];
    for (int b = 0; b < kBlocks; ++b) {
      const uint32_t counter[4] = {static_cast<uint32_t>(base / kPhiloxWords + b),
                                   static_cast<uint32_t>(draw.sequence_index),
                                   static_cast<uint32_t>(position),
                                   static_cast<uint32_t>(position >> 32)};
      uint32_t words[kPhiloxWords];
      philox4x32(counter, key, words);
      for (int w = 0; w < kPhiloxWords; ++w) random[w][b] = words[w];
    }
    float score[kTokens];
    for (int w = 0; w < kPhiloxWords; ++w) {
      for (int b = 0; b < kBlocks; ++b) {
        const int i = b * kPhiloxWords + w;
        score[i] = race(i < count ? x[base + i] : -100.f, random[w][b]);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      if (score[i] > best && is_kept(cut, x[base + i], base + i)) {
        best = score[i];
        winner = base + i;
      }
    }
  }
  return winner;
}

LogitsScan scan_logits(const float* logits, int64_t n) {
  constexpr float kInfinity = __builtin_inff();
  bool bad = false;
  float max = -kInfinity;
  for (int64_t i = 0; i < n; ++i) {
    bad |= !(logits[i] < kInfinity);  // NaN, +inf
    max = logits[i] > max ? logits[i] : max;
  }
  int64_t argmax = 0;
  if (!bad) {
    while (argmax < n - 1 && logits[argmax] != max) ++argmax;
  }
  return {max, argmax, !bad && max > -kInfinity};
}

void scale_logits(const float* logits, int64_t n, float max, float temperature, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] = (logits[i] - max) / temperature;
}

void fixed_point_weights(const float* x, int64_t n, int64_t* weights) {
  for (int64_t i = 0; i < n; ++i) weights[i] = static_cast<int64_t>(exp_negative(x[i]) * 0x1p40f);
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
