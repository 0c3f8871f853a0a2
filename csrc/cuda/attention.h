// What the attention kernels have in common.
#pragma once

#include "cuda/device.h"
#include "cuda/device_plan.h"
#include "params.h"

namespace quire::cuda {

// Positions are cut here, whatever the batch (the invariance rule).
constexpr int kPartitionTokens = 512;

constexpr float kLog2E = 1.4426950408889634f;

// Turns raw scores into base-2 logits: scale, then soft cap, then ALiBi.
struct LogitTransform {
  float scale;
  float cap;    // 0 without one
  float slope;  // in base 2; 0 without ALiBi

  __device__ LogitTransform(const PagedAttentionParams& p, int64_t head)
      : scale(p.scale),
        cap(p.soft_cap),
        slope(p.alibi_slopes != nullptr ? p.alibi_slopes[head] * kLog2E : 0.f) {}

  // `distance`: position of the key minus that of the query.
  __device__ float apply(float score, float distance) const {
    const float logit =
        cap != 0.f ? tanhf(score * (scale / cap)) * (cap * kLog2E) : score * (scale * kLog2E);
    return slope != 0.f ? fmaf(slope, distance, logit) : logit;
  }
};

// Softmax over the keys seen so far, in base 2, and as many columns of the weighted values.
template <int kColumns>
struct SoftmaxState {
  float max = -INFINITY;
  float sum = 0.f;
  float acc[kColumns] = {};

  // Adds keys that come after all of those.
  __device__ void merge(const SoftmaxState& part) {
    const float larger = fmaxf(max, part.max);
    const float a = exp2f(max - larger);
    const float b = exp2f(part.max - larger);
    max = larger;
    sum = fmaf(part.sum, b, sum * a);
    for (int c = 0; c < kColumns; ++c) acc[c] = fmaf(part.acc[c], b, acc[c] * a);
  }
};

// Where the key or value of a token lies.
template <typename T>
__device__ const T* token_address(const PagedAttentionParams& p, const CacheView& cache,
                                  const int32_t* table, int64_t kv_head, int64_t position) {
  return static_cast<const T*>(cache.data) + table[position / p.block_size] * cache.block_stride +
         position % p.block_size * cache.token_stride + kv_head * cache.head_stride;
}

// Each kind of kernel. Dtypes, sizes and arguments were checked.
void attention_plain(const PagedAttentionParams& p, cudaStream_t stream);
// `attention_mma_serves` must have said so.
void attention_mma(const PagedAttentionParams& p, const DevicePlan& plan, cudaStream_t stream);
// Whether there is a kernel on tensor cores for these types, sizes and alignments.
bool attention_mma_serves(const PagedAttentionParams& p);

}  // namespace quire::cuda
