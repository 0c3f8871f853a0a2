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
#include "core/dispatch.h"
#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
#include "cuda/workspace.h"
#include "seed/attention_v1.cuh"

namespace quire::cuda {
namespace seed {
namespace {

constexpr int kPartition = 512;

thread_local Workspace workspace;

// Results of the second version for each partition: [N, H, count, ...].
struct SeedPartitions {
  float* out;
  float* max;
  float* sum;
  int count;
};

template <typename T, int kHeadSize>
__device__ __forceinline__ const T* query_of(const SeedAttentionParams& p) {
  return static_cast<const T*>(p.query) + blockIdx.y * p.query_stride +
         int64_t{blockIdx.x} * kHeadSize;
}

template <typename T, int kHeadSize, int kBlockSize>
__global__ void __launch_bounds__(kThreads, kBlocks)
    attention_v1_kernel(const SeedAttentionParams p) {
  begin_kernel();
  QUIRE_DYNAMIC_SHARED(shared);
  const int64_t seq = blockIdx.y;
  const Range range{0, p.seq_lens[seq]};
  SeedAttention<T, kHeadSize, kBlockSize> attention(p, reinterpret_cast<float*>(shared));
  const float largest = block_reduce<true>(attention.score(query_of<T, kHeadSize>(p), range));
  const float sum = attention.exponentiate(range, largest);
  T* out = static_cast<T*>(p.out) + seq * p.out_stride + int64_t{blockIdx.x} * kHeadSize;
  attention.weigh(range, [out, sum](int row, float x) { out[row] = from_float<T>(x / sum); });
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
  const float largest = block_reduce<true>(attention.score(query_of<T, kHeadSize>(p), range));
  const float sum = attention.exponentiate(range, largest);
  const int64_t at = (seq * p.num_heads + blockIdx.x) * gridDim.z + blockIdx.z;
  float* out = partitions.out + at * kHeadSize;
  attention.weigh(range, [out, sum](int row, float x) { out[row] = x / sum; });
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

}  // namespace
}  // namespace seed

void seed_attention(const SeedAttentionParams& p) {
  const cudaStream_t stream = current_stream();
  QUIRE_DISPATCH_DTYPE(p.dtype, T, seed::dispatch_shape(p, [&](auto head_size, auto block_size) {
                         seed::run<T, head_size(), block_size()>(p, stream);
                       }));
}

}  // namespace quire::cuda
