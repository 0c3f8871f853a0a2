// Paged attention without tensor cores: the definition that the faster kernels are held to, and
// what serves float32 and head sizes that have no fast kernel.
//
// A query row at position p sees keys [max(0, p + 1 - window), p + 1). Positions are cut into
// partitions at absolute multiples of kPartitionTokens. Within one, the softmax is taken at once;
// partitions are merged in order by one formula. Rows, heads and sequences of the batch, chunks and
// the order of blocks are nowhere in that arithmetic, so they cannot change a bit of the result.
#include "cuda/attention/common.h"
#include "cuda/launch.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;
// Of a multiprocessor. Where none are asked for, the compiler spills registers to run more.
constexpr int kBlocks = 8;
constexpr int kTokensOfThread = kPartitionTokens / kThreads;

// The sequence that a row of the batch belongs to.
__device__ int64_t find_sequence(const PagedAttentionParams& p, int64_t row) {
  int64_t low = 0;
  int64_t high = p.num_seqs;  // query_start_loc[low] <= row < query_start_loc[high]
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (p.query_start_loc[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// A block for each row and query head. Values have at most kColumnsOfThread * kThreads elements.
template <typename T, typename Cached, int kColumnsOfThread>
__global__ void __launch_bounds__(kThreads, kBlocks)
    attention_plain_kernel(const PagedAttentionParams p) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  if (row >= p.query_start_loc[p.num_seqs]) return;  // beyond the batch
  const int64_t head = blockIdx.y;
  const int64_t kv_head = head / (p.num_heads / p.num_kv_heads);
  const int64_t seq = find_sequence(p, row);
  const int32_t* table = p.block_tables + seq * p.block_table_stride;
  const int64_t position = p.seq_lens[seq] - (p.query_start_loc[seq + 1] - row);
  const int64_t keys_end = position + 1;
  const int64_t keys_begin = keys_end > p.sliding_window ? keys_end - p.sliding_window : 0;
  const float slope = slope_of(p, head);
  const float key_scale = head_scale(p.key_scales, kv_head);
  const float value_scale = head_scale(p.value_scales, kv_head);

  QUIRE_SHARED(float, query, kMaxHeadSize);
  QUIRE_SHARED(float, scores, kPartitionTokens);
  const T* q =
      static_cast<const T*>(p.query.data) + row * p.query.token_stride + head * p.query.head_stride;
  for (int64_t d = threadIdx.x; d < p.head_size; d += kThreads) query[d] = to_float(q[d]);

  SoftmaxState<kColumnsOfThread> total;
  const int64_t first = keys_begin / kPartitionTokens * kPartitionTokens;
  for (int64_t begin = first; begin < keys_end; begin += kPartitionTokens) {
    const int64_t from = begin > keys_begin ? begin : keys_begin;
    const int64_t to = begin + kPartitionTokens < keys_end ? begin + kPartitionTokens : keys_end;

    __syncthreads();
    for (int64_t key = from + threadIdx.x; key < to; key += kThreads) {
      const Cached* k = token_address<Cached>(p, p.key_cache, table, kv_head, key);
      float dot = 0.f;
      for (int64_t d = 0; d < p.head_size; ++d) dot = fmaf(query[d], to_float(k[d]), dot);
      scores[key - begin] = to_logit(p, slope, dot * key_scale, static_cast<float>(key - position));
    }
    __syncthreads();

    SoftmaxState<kColumnsOfThread> part;
    for (int64_t key = from; key < to; ++key) part.max = fmaxf(part.max, scores[key - begin]);
    float sum = 0.f;
    float probabilities[kTokensOfThread];
    for (int i = 0; i < kTokensOfThread; ++i) {
      const int64_t key = begin + i * kThreads + threadIdx.x;
      const bool seen = key >= from && key < to;
      probabilities[i] = seen ? exp2f(scores[key - begin] - part.max) : 0.f;
      sum += probabilities[i];
    }
    part.sum = block_sum<kThreads>(sum);  // all have read the scores before any is overwritten
    for (int i = 0; i < kTokensOfThread; ++i) scores[i * kThreads + threadIdx.x] = probabilities[i];
    __syncthreads();

    for (int64_t key = from; key < to; ++key) {
      const Cached* v = token_address<Cached>(p, p.value_cache, table, kv_head, key);
      for (int c = 0; c < kColumnsOfThread; ++c) {
        const int64_t d = threadIdx.x + c * kThreads;
        if (d < p.value_size) part.acc[c] = fmaf(scores[key - begin], to_float(v[d]), part.acc[c]);
      }
    }
    total.merge(part);
  }
  if (p.sinks != nullptr) total.add_sink(sink_of(p, head));

  T* out = static_cast<T*>(p.out.data) + row * p.out.token_stride + head * p.out.head_stride;
  for (int c = 0; c < kColumnsOfThread; ++c) {
    const int64_t d = threadIdx.x + c * kThreads;
    if (d < p.value_size) out[d] = from_float<T>(total.acc[c] / total.sum * value_scale);
  }
}

}  // namespace

void attention_plain(const PagedAttentionParams& p, cudaStream_t stream) {
  const auto run = [&](auto kernel) {
    launch(kernel, dim3(grid_size(p.num_tokens), static_cast<unsigned>(p.num_heads)), kThreads, 0,
           stream, p);
  };
  constexpr int kFewColumns = kMaxQuantisedHeadSize / kThreads;
  constexpr int kMostColumns = (kMaxHeadSize + kThreads - 1) / kThreads;
  if (p.value_size > kMaxQuantisedHeadSize) {
    QUIRE_DISPATCH_DTYPE(p.dtype, T, run(attention_plain_kernel<T, T, kMostColumns>));
  } else {
    QUIRE_DISPATCH_CUDA_CACHE(p, T, Cached, run(attention_plain_kernel<T, Cached, kFewColumns>));
  }
}

}  // namespace quire::cuda
