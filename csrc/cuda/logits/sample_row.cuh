// A row being sampled: x of its tokens, and the cut that top-k and top-p make, by one block.
#pragma once

#include <cstdint>

#include "cuda/logits/row_select.cuh"
#include "ops/logits.h"

namespace quire::cuda {
namespace {

__device__ __forceinline__ uint32_t bits_of(float x) {
  return __float_as_uint(x);
}
__device__ __forceinline__ float float_of(uint32_t bits) {
  return __uint_as_float(bits);
}

}  // namespace
}  // namespace quire::cuda

#define QUIRE_NAMESPACE quire::cuda
#define QUIRE_FUNCTION __device__ __forceinline__
#define QUIRE_FMA fmaf
#include "core/sampling_math.h"

namespace quire::cuda {
namespace {

// x = (logit - max) / temperature, never above 0.
struct Row {
  const float* logits;
  int32_t size;
  float max;
  float temperature;

  __device__ float scaled(float logit) const { return (logit - max) / temperature; }
  __device__ float x(int32_t i) const { return scaled(logits[i]); }

  // Orders tokens by descending x; the sign of zero does not count.
  __device__ static uint32_t key(float x) { return bits_of(x) & 0x7fffffffu; }
  __device__ static float x_of(uint32_t key) { return -float_of(key); }
};

// The amount of a token that top-p adds up.
struct WeighTokens {
  __device__ static uint64_t amount(float x) {
    return static_cast<uint64_t>(exp_negative(x) * 0x1p40f);
  }

  __device__ static uint64_t sum(uint32_t lanes, float x) { return sum_amounts(lanes, amount(x)); }
};

__device__ bool has_top_k(const SampleParams& p, int64_t r) {
  return p.top_k[r] > 0 && p.top_k[r] < p.vocab_size;
}
__device__ bool has_top_p(const SampleParams& p, int64_t r) {
  return p.top_p[r] < 1.f;
}

// What top-p wants of tokens that weigh `total`.
__device__ uint64_t top_p_target(float top_p, uint64_t total) {
  const double target = ceil(static_cast<double>(top_p) * static_cast<double>(total));
  return target > 1. ? static_cast<uint64_t>(target) : 1;
}

// Keeps every finite x, or with min-p those that are large enough.
__device__ Cut first_cut(float min_p) {
  if (min_p > 0.f) return {log_of(min_p), kNoIndexCut};
  return {-INFINITY, -1};
}

// The cut of a row in which no few candidates stand out, such as one of equals. All threads of the
// block call it.
__device__ Cut cut_by_digits(const SampleParams& p, const Row& row, int64_t r) {
  Cut cut = first_cut(p.min_p[r]);
  if (has_top_k(p, r)) cut = prefix<CountTokens>(row, cut, static_cast<uint64_t>(p.top_k[r]));
  if (has_top_p(p, r)) {
    uint64_t own = 0;
    for (int32_t i = threadIdx.x; i < row.size; i += kRowThreads) {
      const float x = row.x(i);
      if (cut.keeps(x, i)) own += WeighTokens::amount(x);
    }
    cut = prefix<WeighTokens>(row, cut, top_p_target(p.top_p[r], block_total(own)));
  }
  return cut;
}

}  // namespace
}  // namespace quire::cuda
