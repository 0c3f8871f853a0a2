// How a block of threads attends as the first kernels did: a warp takes a block of the cache, a
// group of threads a token of it. Logits of the whole range lie in shared memory; warps are added
// up there.
#pragma once

#include <algorithm>
#include <cfloat>
#include <type_traits>

#include "core/dispatch.h"
#include "cuda/device.h"
#include "seed/attention_v1.h"
#include "seed/layout_v1.cuh"
#include "seed/packed.cuh"

namespace quire::cuda::seed {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;
// Of a multiprocessor. Where none are asked for, the compiler spills registers to run more.
constexpr int kBlocks = 2;

__device__ __forceinline__ float warp_max(float x, int width) {
  for (int flipped = kWarpSize / 2; flipped >= width; flipped /= 2)
    x = fmaxf(x, __shfl_xor_sync(kFullMask, x, flipped));
  return x;
}

// The largest, or the sum, over the block; the same in every thread.
template <bool kIsMax>
__device__ __forceinline__ float block_reduce(float x) {
  QUIRE_SHARED(float, partial, kWarps);
  x = kIsMax ? warp_max(x, 1) : warp_sum(x);
  __syncthreads();  // an earlier result has been read
  if (threadIdx.x % kWarpSize == 0) partial[threadIdx.x / kWarpSize] = x;
  __syncthreads();
  float all = partial[0];
  for (int warp = 1; warp < kWarps; ++warp)
    all = kIsMax ? fmaxf(all, partial[warp]) : all + partial[warp];
  return all;
}

// The tokens of a block of the launch.
struct Range {
  int begin;
  int end;
};

template <typename T, int kHeadSize, int kBlockSize>
class SeedAttention {
 public:
  // Threads for a token; each reads vectors that are 16 bytes for the group together.
  static constexpr int kGroup = kWarpSize / kBlockSize > 1 ? kWarpSize / kBlockSize : 1;
  static constexpr int kX = kElementsOf16Bytes<T>;
  static constexpr int kKeyVector = kX / kGroup > 1 ? kX / kGroup : 1;
  static constexpr int kKeyVectors = kHeadSize / kGroup / kKeyVector;  // of a thread
  static constexpr int kTokens = kBlockSize * kGroup / kWarpSize;      // of a group in a block
  static constexpr int kValueVector = kX < kBlockSize ? kX : kBlockSize;
  static constexpr int kVectorsOfRow = kBlockSize / kValueVector;
  static constexpr int kRowsAtOnce = kWarpSize / kVectorsOfRow;
  static constexpr int kRows = (kHeadSize + kRowsAtOnce - 1) / kRowsAtOnce;  // of a thread

  __device__ SeedAttention(const SeedAttentionParams& p, float* logits)
      : p_(p),
        logits_(logits),
        warp_(threadIdx.x / kWarpSize),
        lane_(threadIdx.x % kWarpSize),
        kv_head_(blockIdx.x / (p.num_heads / p.num_kv_heads)),
        last_(p.seq_lens[blockIdx.y] - 1),
        slope_(p.alibi_slopes != nullptr ? p.alibi_slopes[blockIdx.x] : 0.f),
        table_(p.block_tables + blockIdx.y * p.block_table_stride) {}

  // A head's part of a block of a cache, by its place in the sequence.
  __device__ T* block_of(const void* cache, int place) const {
    return static_cast<T*>(const_cast<void*>(cache)) + table_[place] * p_.block_stride +
           kv_head_ * p_.head_stride;
  }

  __device__ float logit(float dot, int token) const {
    return dot * p_.scale + slope_ * static_cast<float>(token - last_);
  }

  // Fills logits with those of the range, and returns the largest that this thread has seen.
  __device__ float score(const T* q, const Range& range) {
    using KeyVector = Vector<T, kKeyVector>;
    const int in_group = lane_ % kGroup;
    KeyVector query[kKeyVectors];
#pragma unroll
    for (int j = 0; j < kKeyVectors; ++j)
#pragma unroll
      for (int i = 0; i < kKeyVector; ++i)
        query[j].values[i] = q[(in_group + j * kGroup) * kKeyVector + i];

    float largest = -FLT_MAX;
    for (int block = range.begin / kBlockSize + warp_; block * kBlockSize < range.end;
         block += kWarps) {
      const T* keys = block_of(p_.key_cache, block);
      for (int i = 0; i < kTokens; ++i) {
        const int slot = lane_ / kGroup + i * (kWarpSize / kGroup);
        const int token = block * kBlockSize + slot;
        float sum = 0.f;
        // What is behind the range is not read: another block may be writing it.
        if (token < range.end) {
#pragma unroll
          for (int j = 0; j < kKeyVectors; ++j) {
            const int element = (in_group + j * kGroup) * kKeyVector;
            sum += dot(query[j], *reinterpret_cast<const KeyVector*>(
                                     keys + key_index<T>(element, slot, kBlockSize)));
          }
        }
#pragma unroll
        for (int flipped = kGroup / 2; flipped > 0; flipped /= 2)
          sum += __shfl_xor_sync(kFullMask, sum, flipped);
        if (token < range.end) {
          const float found = logit(sum, token);
          if (in_group == 0) logits_[token - range.begin] = found;
          largest = fmaxf(largest, found);
        }
      }
    }
    return largest;
  }

  // Turns logits into weights that add up to what is returned.
  __device__ float exponentiate(const Range& range, float largest) {
    float sum = 0.f;
    for (int i = static_cast<int>(threadIdx.x); i < range.end - range.begin; i += kThreads) {
      logits_[i] = expf(logits_[i] - largest);
      sum += logits_[i];
    }
    return block_reduce<false>(sum);  // all weights are there when it returns
  }

  // Adds up values by their weights and calls write(element, sum).
  template <typename Write>
  __device__ void weigh(const Range& range, const Write& write) {
    float acc[kRows] = {};
    const int first = lane_ % kVectorsOfRow * kValueVector;
    for (int block = range.begin / kBlockSize + warp_; block * kBlockSize < range.end;
         block += kWarps) {
      const T* values = block_of(p_.value_cache, block);
      const int token = block * kBlockSize + first;
      const float* weights = logits_ + (token - range.begin);
      const bool is_whole = token + kValueVector <= range.end;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = lane_ / kVectorsOfRow + i * kRowsAtOnce;
        if (row >= kHeadSize) continue;
        const T* of_row = values + value_index(row, first, kBlockSize);
        if (is_whole) {
          const auto v = *reinterpret_cast<const Vector<T, kValueVector>*>(of_row);
#pragma unroll
          for (int e = 0; e < kValueVector; ++e)
            acc[i] = fmaf(weights[e], to_float(v.values[e]), acc[i]);
        } else {
          for (int e = 0; e < range.end - token; ++e)
            acc[i] = fmaf(weights[e], to_float(of_row[e]), acc[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int flipped = kVectorsOfRow / 2; flipped > 0; flipped /= 2)
        acc[i] += __shfl_xor_sync(kFullMask, acc[i], flipped);

    // Warps are added two by two, in the memory of the logits, which are done with.
    __syncthreads();
    const bool leads = lane_ % kVectorsOfRow == 0;
    for (int half = kWarps / 2; half > 0; half /= 2) {
      if (warp_ >= half && warp_ < 2 * half && leads) {
        for (int i = 0; i < kRows; ++i) {
          const int row = lane_ / kVectorsOfRow + i * kRowsAtOnce;
          if (row < kHeadSize) logits_[(warp_ - half) * kHeadSize + row] = acc[i];
        }
      }
      __syncthreads();
      if (warp_ < half && leads) {
        for (int i = 0; i < kRows; ++i) {
          const int row = lane_ / kVectorsOfRow + i * kRowsAtOnce;
          if (row < kHeadSize) acc[i] += logits_[warp_ * kHeadSize + row];
        }
      }
      __syncthreads();
    }
    if (warp_ != 0 || !leads) return;
    for (int i = 0; i < kRows; ++i) {
      const int row = lane_ / kVectorsOfRow + i * kRowsAtOnce;
      if (row < kHeadSize) write(row, acc[i]);
    }
  }

 private:
  const SeedAttentionParams& p_;
  float* logits_;
  int warp_;
  int lane_;
  int kv_head_;
  int last_;  // token
  float slope_;
  const int32_t* table_;
};

// Logits of `tokens`, and the space in which warps are added.
inline size_t shared_bytes(const SeedAttentionParams& p, int64_t tokens) {
  return sizeof(float) * static_cast<size_t>(std::max(tokens, kWarps / 2 * p.head_size));
}

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

// Calls run(head size, block size) with constants.
template <int kHeadSize, typename Run>
void dispatch_block_size(int64_t block_size, const Run& run) {
  switch (block_size) {
    case 8:
      return run(Constant<kHeadSize>{}, Constant<8>{});
    case 16:
      return run(Constant<kHeadSize>{}, Constant<16>{});
    case 32:
      return run(Constant<kHeadSize>{}, Constant<32>{});
    default:
      dispatch_failed("block size", static_cast<int>(block_size));
  }
}
template <typename Run>
void dispatch_shape(const SeedAttentionParams& p, const Run& run) {
  switch (p.head_size) {
    case 64:
      return dispatch_block_size<64>(p.block_size, run);
    case 80:
      return dispatch_block_size<80>(p.block_size, run);
    case 128:
      return dispatch_block_size<128>(p.block_size, run);
    default:
      dispatch_failed("head size", static_cast<int>(p.head_size));
  }
}

}  // namespace quire::cuda::seed
