// Log-probabilities of chosen tokens and of the most probable ones: bit by bit what
// cpu/logprobs.cpp finds.
#include "core/check.h"
#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
#include "cuda/logits/row_select.cuh"
#include "ops/logits.h"

#define QUIRE_NAMESPACE quire::cuda
#define QUIRE_FUNCTION __device__ __forceinline__
#include "core/logits_math.h"

namespace quire::cuda {
namespace {

struct LogitsRow {
  const float* logits;
  int32_t size;

  __device__ float x(int32_t i) const { return logits[i]; }

  // Orders logits from the largest, as unsigned integers; both zeros have the same.
  __device__ static uint32_t key(float x) {
    const uint32_t bits = __float_as_uint(x + 0.f);
    return bits >> 31 != 0 ? bits : ~(bits | 0x80000000u);
  }
  __device__ static float x_of(uint32_t key) {
    return __uint_as_float(key >> 31 != 0 ? key : ~key & 0x7fffffffu);
  }
};

// Writes the best tokens of a row in order: those that the cut keeps are gathered in any order, and
// the place of each is the number of better ones.
__device__ void write_top(const TopLogprobsParams& p, const LogitsRow& row, float max,
                          double log_sum, int64_t r) {
  QUIRE_SHARED(float, values, kMaxTopLogprobs);
  QUIRE_SHARED(int32_t, token_ids, kMaxTopLogprobs);
  QUIRE_SHARED(int32_t, num_kept, 1);
  const auto num_top = static_cast<int32_t>(p.num_top);
  Cut cut{-INFINITY, kNoIndexCut};
  if (num_top < row.size) cut = prefix<CountTokens>(row, cut, static_cast<uint64_t>(num_top));
  if (threadIdx.x == 0) num_kept[0] = 0;
  __syncthreads();
  for (int32_t i = threadIdx.x; i < row.size; i += kRowThreads) {
    if (!cut.keeps(row.x(i), i)) continue;
    const int32_t slot = atomicAdd(&num_kept[0], 1);
    values[slot] = row.x(i);
    token_ids[slot] = i;
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < num_top; i += kRowThreads) {
    int32_t better = 0;
    for (int32_t j = 0; j < num_top; ++j) {
      better += values[j] > values[i] || (values[j] == values[i] && token_ids[j] < token_ids[i]);
    }
    p.top_token_ids[r * p.num_top + better] = token_ids[i];
    p.top_logprobs[r * p.num_top + better] = logprob_of(values[i], max, log_sum);
  }
}

// A block for each row.
__global__ void __launch_bounds__(kRowThreads, 2) top_logprobs_kernel(const TopLogprobsParams p) {
  begin_kernel();
  const int64_t r = blockIdx.x;
  const LogitsRow row{p.logits + r * p.row_stride, static_cast<int32_t>(p.vocab_size)};
  QUIRE_SHARED(int32_t, is_bad, 1);
  if (threadIdx.x == 0) is_bad[0] = 0;
  __syncthreads();
  Best best{-INFINITY, INT32_MAX};
  bool bad = false;
  for (int32_t i = threadIdx.x; i < row.size; i += kRowThreads) {
    bad |= !(row.x(i) < INFINITY);  // NaN, +inf
    best.take(row.x(i), i);
  }
  if (bad) is_bad[0] = 1;
  const float max = block_best(best).value;
  if (is_bad[0] != 0 || !(max > -INFINITY)) {
    if (threadIdx.x == 0) {
      p.logprobs[r] = __uint_as_float(0x7fc00000u);
      p.ranks[r] = 1;
    }
    for (int64_t i = threadIdx.x; i < p.num_top; i += kRowThreads) {
      p.top_token_ids[r * p.num_top + i] = 0;
      p.top_logprobs[r * p.num_top + i] = __uint_as_float(0x7fc00000u);
    }
    return;
  }
  const float chosen = row.x(static_cast<int32_t>(p.token_ids[r]));
  uint64_t weights = 0;
  uint64_t larger = 0;
  for (int32_t i = threadIdx.x; i < row.size; i += kRowThreads) {
    weights += fixed_point_exp(static_cast<double>(row.x(i)) - static_cast<double>(max));
    larger += row.x(i) > chosen;
  }
  const double log_sum = log_of_weights(block_total(weights));
  larger = block_total(larger);
  if (threadIdx.x == 0) {
    p.logprobs[r] = logprob_of(chosen, max, log_sum);
    p.ranks[r] = static_cast<int64_t>(larger) + 1;
  }
  if (p.num_top > 0) write_top(p, row, max, log_sum, r);
}

}  // namespace

void top_logprobs(const TopLogprobsParams& p, cudaStream_t stream) {
  check_range("vocab_size", p.vocab_size, 0, kMaxRowSize + 1);
  launch(top_logprobs_kernel, grid_size(p.num_rows), kRowThreads, 0, stream, p);
}

}  // namespace quire::cuda
