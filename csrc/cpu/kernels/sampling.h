// Passes over a row of logits for the sampler (cpu/sampler.cpp).
#pragma once

#include "cpu/kernel_table.h"
#include "cpu/kernels/element.h"

#define QUIRE_NAMESPACE quire::cpu::QUIRE_ISA
#define QUIRE_FUNCTION inline
#define QUIRE_FMA __builtin_fmaf
#include "core/logits_math.h"
#include "core/sampling_math.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

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

uint64_t sum_weights(const float* logits, int64_t n, float max) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += fixed_point_exp(static_cast<double>(logits[i]) - static_cast<double>(max));
  return sum;
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
