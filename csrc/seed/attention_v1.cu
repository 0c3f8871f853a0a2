// Paged attention as the field began with it, for benchmarks and tests to compare with; not on the
// serving path (Kwon et al. 2023, PagedAttention, section 5.1).
//
// One query token of each sequence. A block for each sequence and query head; a warp takes a block
// of the cache, a group of threads a token of it. Logits of the whole context lie in shared memory,
// which limits its length; every query head reads keys and values again. Keys are stored as
// [B, Hkv, D / x, BS, x] with x elements of 16 bytes, so that the threads of a group read 16 bytes
// together; values as [B, Hkv, D, BS].
//
// The second version cuts the context into partitions of 512 tokens, each a block of its own, and
// merges them in a second launch.
#include <algorithm>
#include <cfloat>

#include "core/dispatch.h"
#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
#include "cuda/workspace.h"
#include "seed/attention_v1.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;
// Of a multiprocessor. Where none are asked for, the compiler spills registers to run more.
constexpr int kBlocks = 2;
constexpr int kPartition = 512;

thread_local Workspace workspace;

// Results of the second version for each partition: [N, H, count, ...].
struct SeedPartitions {
  float* out;
  float* max;
  float* sum;
  int count;
};

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T values[kCount];
};

__device__ float warp_max(float x, int width) {
  for (int flipped = kWarpSize / 2; flipped >= width; flipped /= 2)
    x = fmaxf(x, __shfl_xor_sync(kFullMask, x, flipped));
  return x;
}

// The largest, or the sum, over the block; the same in every thread.
template <bool kIsMax>
__device__ float block_reduce(float x) {
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
  static constexpr int kX = 16 / sizeof(T);
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
        head_(blockIdx.x),
        kv_head_(blockIdx.x / (p.num_heads / p.num_kv_heads)),
        seq_(blockIdx.y),
        table_(p.block_tables + blockIdx.y * p.block_table_stride) {}

  // Fills logits with those of the range, and returns the largest of them.
  __device__ float score(const Range& range) {
    const int in_group = lane_ % kGroup;
    const T* q =
        static_cast<const T*>(p_.query) + seq_ * p_.query_stride + int64_t{head_} * kHeadSize;
    float query[kKeyVectors][kKeyVector];
    for (int j = 0; j < kKeyVectors; ++j)
      for (int i = 0; i < kKeyVector; ++i)
        query[j][i] = to_float(q[(in_group + j * kGroup) * kKeyVector + i]);
    const float slope = p_.alibi_slopes != nullptr ? p_.alibi_slopes[head_] : 0.f;

    float largest = -FLT_MAX;
    for (int block = range.begin / kBlockSize + warp_; block * kBlockSize < range.end;
         block += kWarps) {
      const T* keys = static_cast<const T*>(p_.key_cache) + table_[block] * p_.block_stride +
                      kv_head_ * p_.head_stride;
      for (int i = 0; i < kTokens; ++i) {
        const int slot = lane_ / kGroup + i * (kWarpSize / kGroup);
        const int token = block * kBlockSize + slot;
        float dot = 0.f;
        for (int j = 0; j < kKeyVectors; ++j) {
          const int element = (in_group + j * kGroup) * kKeyVector;
          const auto k = *reinterpret_cast<const Vector<T, kKeyVector>*>(
              keys + (element / kX * kBlockSize + slot) * kX + element % kX);
          for (int e = 0; e < kKeyVector; ++e) dot = fmaf(query[j][e], to_float(k.values[e]), dot);
        }
        for (int flipped = kGroup / 2; flipped > 0; flipped /= 2)
          dot += __shfl_xor_sync(kFullMask, dot, flipped);
        const float logit =
            dot * p_.scale + slope * static_cast<float>(token - (p_.seq_lens[seq_] - 1));
        if (token < range.end) {
          if (in_group == 0) logits_[token - range.begin] = logit;
          largest = fmaxf(largest, logit);
        }
      }
    }
    return block_reduce<true>(largest);
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

  // Adds up values by their weights and calls write(element, sum / divisor).
  template <typename Write>
  __device__ void weigh(const Range& range, float divisor, const Write& write) {
    float acc[kRows] = {};
    const int first = lane_ % kVectorsOfRow * kValueVector;
    for (int block = range.begin / kBlockSize + warp_; block * kBlockSize < range.end;
         block += kWarps) {
      const T* values = static_cast<const T*>(p_.value_cache) + table_[block] * p_.block_stride +
                        kv_head_ * p_.head_stride;
      for (int i = 0; i < kRows; ++i) {
        const int row = lane_ / kVectorsOfRow + i * kRowsAtOnce;
        if (row >= kHeadSize) continue;
        const auto v =
            *reinterpret_cast<const Vector<T, kValueVector>*>(values + row * kBlockSize + first);
        for (int e = 0; e < kValueVector; ++e) {
          const int token = block * kBlockSize + first + e;
          if (token < range.end)
            acc[i] = fmaf(logits_[token - range.begin], to_float(v.values[e]), acc[i]);
        }
      }
    }
    for (int i = 0; i < kRows; ++i)
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
      if (row < kHeadSize) write(row, acc[i] / divisor);
    }
  }

 private:
  const SeedAttentionParams& p_;
  float* logits_;
  int warp_;
  int lane_;
  int head_;
  int kv_head_;
  int64_t seq_;
  const int32_t* table_;
};

template <typename T, int kHeadSize, int kBlockSize>
__global__ void __launch_bounds__(kThreads, kBlocks)
    attention_v1_kernel(const SeedAttentionParams p) {
  begin_kernel();
  QUIRE_DYNAMIC_SHARED(shared);
  const int64_t seq = blockIdx.y;
  const Range range{0, p.seq_lens[seq]};
  SeedAttention<T, kHeadSize, kBlockSize> attention(p, reinterpret_cast<float*>(shared));
  const float sum = attention.exponentiate(range, attention.score(range));
  T* out = static_cast<T*>(p.out) + seq * p.out_stride + int64_t{blockIdx.x} * kHeadSize;
  attention.weigh(range, sum, [out](int row, float x) { out[row] = from_float<T>(x); });
}

// Grid: heads, sequences, partitions. Results of a partition lie at [seq, head, partition].
template <typename T, int kHeadSize, int kBlockSize>
__global__ void __launch_bounds__(kThreads, kBlocks)
    attention_v2_kernel(const SeedAttentionParams p, SeedPartitions partitions) {
  begin_kernel();
  QUIRE_DYNAMIC_SHARED(shared);
  const int64_t seq = blockIdx.y;
  const int begin = static_cast<int>(blockIdx.z) * kPartition;
  if (begin >= p.seq_lens[seq]) return;
  const Range range{begin, min(begin + kPartition, p.seq_lens[seq])};
  SeedAttention<T, kHeadSize, kBlockSize> attention(p, reinterpret_cast<float*>(shared));
  const float largest = attention.score(range);
  const float sum = attention.exponentiate(range, largest);
  const int64_t at = (seq * p.num_heads + blockIdx.x) * gridDim.z + blockIdx.z;
  float* out = partitions.out + at * kHeadSize;
  attention.weigh(range, sum, [out](int row, float x) { out[row] = x; });
  if (threadIdx.x == 0) {
    partitions.max[at] = largest;
    partitions.sum[at] = sum;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    attention_v2_merge_kernel(const SeedAttentionParams p, SeedPartitions partitions) {
  begin_kernel();
  const int64_t seq = blockIdx.y;
  const int count = (p.seq_lens[seq] + kPartition - 1) / kPartition;
  const int64_t first = (seq * p.num_heads + blockIdx.x) * partitions.count;
  float largest = -FLT_MAX;
  for (int i = 0; i < count; ++i) largest = fmaxf(largest, partitions.max[first + i]);
  float total = 0.f;
  for (int i = 0; i < count; ++i)
    total += partitions.sum[first + i] * expf(partitions.max[first + i] - largest);
  T* out = static_cast<T*>(p.out) + seq * p.out_stride + blockIdx.x * p.head_size;
  for (int64_t d = threadIdx.x; d < p.head_size; d += kThreads) {
    float acc = 0.f;
    for (int i = 0; i < count; ++i) {
      const float share =
          partitions.sum[first + i] * expf(partitions.max[first + i] - largest) / total;
      acc = fmaf(partitions.out[(first + i) * p.head_size + d], share, acc);
    }
    out[d] = from_float<T>(acc);
  }
}

// Logits of `tokens`, and the space in which warps are added.
size_t shared_bytes(const SeedAttentionParams& p, int64_t tokens) {
  return sizeof(float) * static_cast<size_t>(std::max(tokens, kWarps / 2 * p.head_size));
}

template <typename T, int kHeadSize, int kBlockSize>
void run(const SeedAttentionParams& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(p.num_heads), grid_size(p.num_seqs));
  if (!p.is_partitioned) {
    launch(attention_v1_kernel<T, kHeadSize, kBlockSize>, grid, kThreads,
           shared_bytes(p, p.max_seq_len), stream, p);
    return;
  }
  const auto count = static_cast<int>((p.max_seq_len + kPartition - 1) / kPartition);
  const size_t rows = static_cast<size_t>(p.num_seqs * p.num_heads) * count;
  workspace.begin(
      Workspace::piece_bytes<float>(rows * kHeadSize) + 2 * Workspace::piece_bytes<float>(rows),
      stream);
  const SeedPartitions partitions{workspace.take<float>(rows * kHeadSize),
                                  workspace.take<float>(rows), workspace.take<float>(rows), count};
  launch(attention_v2_kernel<T, kHeadSize, kBlockSize>,
         dim3(grid.x, grid.y, static_cast<unsigned>(count)), kThreads, shared_bytes(p, kPartition),
         stream, p, partitions);
  launch(attention_v2_merge_kernel<T>, grid, kThreads, 0, stream, p, partitions);
}

template <typename T, int kHeadSize>
void run_block_size(const SeedAttentionParams& p, cudaStream_t stream) {
  switch (p.block_size) {
    case 8:
      return run<T, kHeadSize, 8>(p, stream);
    case 16:
      return run<T, kHeadSize, 16>(p, stream);
    case 32:
      return run<T, kHeadSize, 32>(p, stream);
    default:
      dispatch_failed("block size", static_cast<int>(p.block_size));
  }
}

}  // namespace

void seed_attention(const SeedAttentionParams& p) {
  const cudaStream_t stream = current_stream();
  QUIRE_DISPATCH_DTYPE(
      p.dtype, T, switch (p.head_size) {
        case 64:
          return run_block_size<T, 64>(p, stream);
        case 80:
          return run_block_size<T, 80>(p, stream);
        case 128:
          return run_block_size<T, 128>(p, stream);
        default:
          dispatch_failed("head size", static_cast<int>(p.head_size));
      });
}

}  // namespace quire::cuda
