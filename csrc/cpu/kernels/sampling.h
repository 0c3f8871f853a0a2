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

constexpr int kDrawTokens = 64;  // of a block, whose random numbers are made together
constexpr int kCounters = kDrawTokens / kPhiloxWords;

QUIRE_ALWAYS_INLINE float scaled(const ScaledLogits& row, int64_t i) {
  return (row.logits[i] - row.max) / row.temperature;
}

inline bool is_kept(const SampleCut& cut, float x, int64_t index) {
  return x > cut.x_cut || (x == cut.x_cut && index <= cut.index_cut);
}

inline int64_t weight_of(float x) {
  return static_cast<int64_t>(exp_negative(x) * 0x1p40f);
}

inline int bin_of(float x) {
  const float bin = -x * kBinsPerUnit;
  return bin < kNumBins - 1 ? static_cast<int>(bin) : kNumBins - 1;
}

// The word of each token of a block whose first counter is `first`: philox4x32 of kCounters
// counters side by side.
inline void random_words(const DrawKey& draw, uint32_t first, uint32_t words[kDrawTokens]) {
  const auto position = static_cast<uint64_t>(draw.position);
  const uint32_t key[2] = {static_cast<uint32_t>(draw.seed),
                           static_cast<uint32_t>(draw.seed >> 32)};
  uint32_t by_word[kPhiloxWords][kCounters];
  for (uint32_t c = 0; c < kCounters; ++c) {
    const uint32_t counter[4] = {first + c, static_cast<uint32_t>(draw.sequence_index),
                                 static_cast<uint32_t>(position),
                                 static_cast<uint32_t>(position >> 32)};
    uint32_t out[kPhiloxWords];
    philox4x32(counter, key, out);
    for (int w = 0; w < kPhiloxWords; ++w) by_word[w][c] = out[w];
  }
  for (int c = 0; c < kCounters; ++c) {
    for (int w = 0; w < kPhiloxWords; ++w) words[c * kPhiloxWords + w] = by_word[w][c];
  }
}

// A bound on e^x for x <= 0, at most 7 % above it: e^x = 2^n (1 + f) has 2^f <= 1 + f, and the bits
// of a float are n and f.
QUIRE_ALWAYS_INLINE float exp_bound(float x) {
  const float clamped = x > -87.f ? x : -87.f;
  constexpr float kOne = 1 << 23;
  return float_of(static_cast<uint32_t>(
      static_cast<int32_t>(clamped * (1.44269504f * kOne) + 127.001f * kOne)));
}

// Few tokens can win the race against the best so far: an exponential variate is at least (r + 1/2)
// 2^-32 of its random word r, so a token loses if exp_bound(x) < best (r + 1/2) 2^-32. Only the
// others are raced; bounds have room for the rounding of what they bound.
int64_t draw_token(const ScaledLogits& row, const SampleCut& cut, const DrawKey& draw) {
  float best = -1.f;
  int64_t winner = 0;
  for (int64_t base = 0; base < row.size; base += kDrawTokens) {
    const auto count = static_cast<int>(min_of(kDrawTokens, row.size - base));
    float x[kDrawTokens];
    uint32_t may_win[kDrawTokens];
    uint32_t any = 0;
    for (int i = 0; i < count; ++i) {
      x[i] = scaled(row, base + i);
      any |= x[i] >= cut.x_cut ? 1 : 0;
    }
    if (any == 0) continue;
    for (int i = count; i < kDrawTokens; ++i) x[i] = -__builtin_inff();
    uint32_t words[kDrawTokens];
    random_words(draw, static_cast<uint32_t>(base / kPhiloxWords), words);
    const float least = best * 0x1p-32f;
    any = 0;
    for (int i = 0; i < kDrawTokens; ++i) {
      const float variate = static_cast<float>(words[i]);
      may_win[i] = ((exp_bound(x[i]) >= least * variate) & (x[i] >= cut.x_cut)) ? 1 : 0;
      any |= may_win[i];
    }
    if (any == 0) continue;
    for (int i = 0; i < count; ++i) {
      if (may_win[i] == 0 || !is_kept(cut, x[i], base + i)) continue;
      const float score = race(x[i], words[i]);
      if (score > best) {
        best = score;
        winner = base + i;
      }
    }
  }
  return winner;
}

LogitsScan scan_logits(const float* logits, int64_t n) {
  constexpr float kInfinity = __builtin_inff();
  constexpr int kChains = 4;
  constexpr int64_t kStep = kChains * kLanes;
  F32 maxima[kChains];
  F32 bad[kChains];
  for (int c = 0; c < kChains; ++c) {
    maxima[c] = broadcast(-kInfinity);
    bad[c] = zero();
  }
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    for (int c = 0; c < kChains; ++c) {
      const F32 x = load(logits + i + c * kLanes);
      maxima[c] = max(x, maxima[c]);
      bad[c] = select_less(x, broadcast(kInfinity), bad[c], broadcast(1.f));  // NaN, +inf
    }
  }
  float max_ = reduce_max(max(max(maxima[0], maxima[1]), max(maxima[2], maxima[3])));
  bool is_bad = reduce_max(max(max(bad[0], bad[1]), max(bad[2], bad[3]))) > 0.f;
  for (; i < n; ++i) {
    is_bad |= !(logits[i] < kInfinity);
    max_ = logits[i] > max_ ? logits[i] : max_;
  }
  if (is_bad || max_ == -kInfinity) return {max_, 0, false};
  int64_t argmax = 0;
  for (; argmax + kStep <= n; argmax += kStep) {
    int found = 0;
    for (int64_t j = 0; j < kStep; ++j) found |= logits[argmax + j] == max_ ? 1 : 0;
    if (found != 0) break;
  }
  while (argmax < n - 1 && logits[argmax] != max_) ++argmax;
  return {max_, argmax, true};
}

// What a block of tokens adds to bins, worked out in vectors before it is added one by one.
void add_to_bins(const ScaledLogits& row, const SampleCut& cut, bool by_weight, int64_t* bins) {
  constexpr int kBlock = 64;
  for (int64_t base = 0; base < row.size; base += kBlock) {
    const auto count = static_cast<int>(min_of(kBlock, row.size - base));
    float x[kBlock];
    int bin[kBlock];
    int64_t amount[kBlock];
    int any = 0;
    for (int i = 0; i < count; ++i) {
      x[i] = scaled(row, base + i);
      any |= x[i] >= cut.x_cut ? 1 : 0;
    }
    if (any == 0) continue;
    for (int i = 0; i < count; ++i) bin[i] = bin_of(x[i]);
    for (int i = 0; i < count; ++i) amount[i] = by_weight ? weight_of(x[i]) : 1;
    for (int i = 0; i < count; ++i) {
      if (is_kept(cut, x[i], base + i)) bins[bin[i]] += amount[i];
    }
  }
}

int64_t tokens_of_bin(const ScaledLogits& row, const SampleCut& cut, int bin, int64_t begin,
                      int64_t end, Candidate* out) {
  constexpr int kBlock = 64;
  int64_t found = 0;
  for (int64_t base = begin; base < end; base += kBlock) {
    const auto count = static_cast<int>(min_of(kBlock, end - base));
    float x[kBlock];
    int is_in[kBlock];
    int any = 0;
    for (int i = 0; i < count; ++i) {
      x[i] = scaled(row, base + i);
      is_in[i] = bin_of(x[i]) == bin ? 1 : 0;
      any |= is_in[i];
    }
    if (any == 0) continue;
    for (int i = 0; i < count; ++i) {
      if (is_in[i] != 0 && is_kept(cut, x[i], base + i))
        out[found++] = {x[i], base + i, weight_of(x[i])};
    }
  }
  return found;
}

uint64_t sum_weights(const float* logits, int64_t n, float max) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += fixed_point_exp(static_cast<double>(logits[i]) - static_cast<double>(max));
  return sum;
}

}  // namespace
}  // namespace quire::cpu::QUIRE_ISA
