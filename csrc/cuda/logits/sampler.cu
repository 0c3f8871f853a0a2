// Temperature, then min-p, top-k and top-p in that order, then an exponential race over what is
// left: token by token what cpu/sampler.cpp draws.
//
// With tokens ordered by (logit descending, index ascending), each filter keeps a prefix, so one
// cut (a logit and an index) describes the result (row_select.cuh). Probabilities are summed as
// integers of 2^-40, whose sum does not depend on the order of addition.
#include <cstdint>

#include "core/check.h"
#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
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

// A row being sampled: x(i) = (logit - max) / temperature, never above 0.
struct Row {
  const float* logits;
  int32_t size;
  float max;
  float temperature;

  __device__ float x(int32_t i) const { return (logits[i] - max) / temperature; }

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

__device__ Cut filter(const SampleParams& p, const Row& row, int64_t r) {
  Cut cut{-INFINITY, -1};  // keeps every finite x
  if (p.min_p[r] > 0.f) cut = {log_of(p.min_p[r]), kNoIndexCut};
  if (p.top_k[r] > 0 && p.top_k[r] < p.vocab_size)
    cut = prefix<CountTokens>(row, cut, static_cast<uint64_t>(p.top_k[r]));
  if (p.top_p[r] < 1.f) {
    uint64_t own = 0;
    for (int32_t i = threadIdx.x; i < row.size; i += kRowThreads) {
      const float x = row.x(i);
      if (cut.keeps(x, i)) own += WeighTokens::amount(x);
    }
    const auto total = static_cast<double>(block_total(own));
    const double target = ceil(static_cast<double>(p.top_p[r]) * total);
    cut = prefix<WeighTokens>(row, cut, target > 1. ? static_cast<uint64_t>(target) : 1);
  }
  return cut;
}

// The race: among exponential clocks with rates e^x, clock i rings first with probability
// softmax(x)[i]. A Philox block serves four tokens.
__device__ int32_t draw(const SampleParams& p, const Row& row, const Cut& cut, int64_t r) {
  const auto seed = static_cast<uint64_t>(p.seed[r]);
  const auto position = static_cast<uint64_t>(p.position[r]);
  const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  Best best{-1.f, 0};
  for (int32_t begin = kPhiloxWords * static_cast<int32_t>(threadIdx.x); begin < row.size;
       begin += kPhiloxWords * kRowThreads) {
    const uint32_t counter[4] = {
        static_cast<uint32_t>(begin / kPhiloxWords), static_cast<uint32_t>(p.sequence_index[r]),
        static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32)};
    uint32_t random[4];
    philox4x32(counter, key, random);
#pragma unroll
    for (int word = 0; word < kPhiloxWords; ++word) {
      const int32_t i = begin + word;
      if (i >= row.size) break;
      const float x = row.x(i);
      if (cut.keeps(x, i)) best.take(race(x, random[word]), i);
    }
  }
  return block_best(best).index;
}

// A block for each row.
__global__ void __launch_bounds__(kRowThreads, 2) sample_kernel(const SampleParams p) {
  begin_kernel();
  const int64_t r = blockIdx.x;
  const float* logits = p.logits + r * p.row_stride;
  const auto size = static_cast<int32_t>(p.vocab_size);
  QUIRE_SHARED(int32_t, is_bad, 1);
  if (threadIdx.x == 0) is_bad[0] = 0;
  __syncthreads();
  Best best{-INFINITY, INT32_MAX};
  bool bad = false;
  for (int32_t i = threadIdx.x; i < size; i += kRowThreads) {
    bad |= !(logits[i] < INFINITY);  // NaN, +inf
    best.take(logits[i], i);
  }
  if (bad) is_bad[0] = 1;
  best = block_best(best);
  const bool ok = is_bad[0] == 0 && best.value > -INFINITY;
  int32_t token_id = is_bad[0] == 0 ? best.index : 0;
  if (ok && p.temperature[r] != 0.f) {
    const Row row{logits, size, best.value, p.temperature[r]};
    token_id = draw(p, row, filter(p, row, r), r);
  }
  if (threadIdx.x == 0) {
    p.token_ids[r] = token_id;
    p.ok[r] = ok;
  }
}

}  // namespace

void sample(const SampleParams& p, cudaStream_t stream) {
  check_range("vocab_size", p.vocab_size, 0, kMaxRowSize + 1);
  launch(sample_kernel, grid_size(p.num_rows), kRowThreads, 0, stream, p);
}

}  // namespace quire::cuda
