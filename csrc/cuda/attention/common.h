// Shared by the attention kernels.
#pragma once

#include <type_traits>

#include "cuda/attention/device_plan.h"
#include "cuda/cache/common.h"
#include "cuda/device.h"
#include "ops/attention.h"

namespace quire::cuda {

// Positions are cut here, whatever the batch (the invariance rule).
constexpr int kPartitionTokens = 512;

constexpr float kLog2E = 1.4426950408889634f;

// ALiBi's slope of a query head in base 2; 0 without ALiBi.
__device__ __forceinline__ float slope_of(const PagedAttentionParams& p, int64_t head) {
  return p.alibi_slopes != nullptr ? p.alibi_slopes[head] * kLog2E : 0.f;
}

// A query head's sink as a base-2 logit.
__device__ __forceinline__ float sink_of(const PagedAttentionParams& p, int64_t head) {
  return p.sinks[head] * kLog2E;
}

// What a raw score is multiplied by first: that makes it a base-2 logit unless there is a soft cap.
__device__ __forceinline__ float score_factor(const PagedAttentionParams& p) {
  return p.soft_cap != 0.f ? p.scale / p.soft_cap : p.scale * kLog2E;
}

// The base-2 logit of what that makes of a score, where there is a soft cap.
__device__ __forceinline__ float cap(const PagedAttentionParams& p, float score) {
  return tanhf(score) * (p.soft_cap * kLog2E);
}

// A logit with ALiBi. `distance` is the position of the key minus that of the query.
__device__ __forceinline__ float add_slope(float slope, float distance, float logit) {
  return slope != 0.f ? fmaf(slope, distance, logit) : logit;
}

// A raw score as a base-2 logit: scale, then soft cap, then ALiBi.
__device__ __forceinline__ float to_logit(const PagedAttentionParams& p, float slope, float score,
                                          float distance) {
  const float scaled = score * score_factor(p);
  return add_slope(slope, distance, p.soft_cap != 0.f ? cap(p, scaled) : scaled);
}

// Whether the kernel of shared partitions, as that of prompts, has such heads and caches.
template <typename T, typename Cached, int kHeadSize>
constexpr bool kCanShare = std::is_same_v<T, Cached> && (kHeadSize == 64 || kHeadSize == 128);

// Softmax over the keys seen so far, in base 2, and as many columns of the weighted values.
template <int kColumns>
struct SoftmaxState {
  float max = -INFINITY;
  float sum = 0.f;
  float acc[kColumns] = {};

  // Adds keys that come after all of these.
  __device__ void merge(const SoftmaxState& part) {
    const float larger = fmaxf(max, part.max);
    const float a = exp2f(max - larger);
    const float b = exp2f(part.max - larger);
    max = larger;
    sum = fmaf(part.sum, b, sum * a);
    for (int c = 0; c < kColumns; ++c) acc[c] = fmaf(part.acc[c], b, acc[c] * a);
  }

  // Adds a key of no value, behind all others.
  __device__ void add_sink(float logit) {
    SoftmaxState sink;
    sink.max = logit;
    sink.sum = 1.f;
    merge(sink);
  }
};

// The address of the key or value of a token.
template <typename T>
__device__ const T* token_address(const PagedAttentionParams& p, const CacheView& cache,
                                  const int32_t* table, int64_t kv_head, int64_t position) {
  return static_cast<const T*>(cache.data) + table[position / p.block_size] * cache.block_stride +
         position % p.block_size * cache.token_stride + kv_head * cache.head_stride;
}

// The kinds of kernels. Dtypes, sizes and arguments were checked.
void attention_plain(const PagedAttentionParams& p, cudaStream_t stream);
// `attention_mma_serves` must have returned true.
void attention_mma(const PagedAttentionParams& p, const DeviceWork& work, cudaStream_t stream);
// The blocks of 8 or 16 columns of it that the device runs at once.
int attention_mma_blocks(const PagedAttentionParams& p, int columns);
// Both for caches of e4m3.
void attention_mma_e4m3(const PagedAttentionParams& p, const DeviceWork& work, cudaStream_t stream);
int attention_mma_blocks_e4m3(const PagedAttentionParams& p, int columns);
// Whether a kernel on tensor cores takes these types, sizes and alignments.
bool attention_mma_serves(const PagedAttentionParams& p);
// What several sequences share, for the items of `attention_mma` that begin with it:
// `attention_prompt_serves` must have returned true.
void attention_shared(const PagedAttentionParams& p, const SharedWork& work, cudaStream_t stream);
// The same for sequences of many columns, with the same bits: `attention_prompt_serves` must have
// returned true.
void attention_prompt(const PagedAttentionParams& p, const DeviceWork& work, cudaStream_t stream);
int attention_prompt_blocks(const PagedAttentionParams& p);
int attention_prompt_columns(const PagedAttentionParams& p);  // of a block
bool attention_prompt_serves(const PagedAttentionParams& p);
// Keys of 576 elements of 16 bits, of which the first 512 are the value: of blocks of kLatentFew or
// kLatentMany columns, with the same bits. `attention_latent_serves` must have returned true.
constexpr int kLatentFew = 16;
constexpr int kLatentMany = 32;
void attention_latent(const PagedAttentionParams& p, const DeviceWork& work, cudaStream_t stream);
// The blocks of so many columns that the device runs at once.
int attention_latent_blocks(const PagedAttentionParams& p, int columns);
bool attention_latent_serves(const PagedAttentionParams& p);

// Whether tiles of a cache can be copied 16 bytes at a time, and queries of 16 bits be read in
// pairs.
bool is_aligned_cache(const CacheView& cache, int64_t element_bytes);
bool is_aligned_query(const RowsView& query);

}  // namespace quire::cuda
