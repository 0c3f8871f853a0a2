// Decode in one kernel, as FasterTransformer's masked multi-head attention has it: bias, rotary
// embedding, the cache and attention, so that a projection is read once and no row of it is written
// in between. For tests to compare with; not on the serving path.
//
// A block for each sequence and query head, over the whole context, whose logits lie in shared
// memory. Blocks of a group of query heads each compute the key and value of the token, and the
// first of them writes both to the cache; none reads them there.
#include "core/dispatch.h"
#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
#include "cuda/layers/rotary.cuh"
#include "seed/attention_v1.cuh"
#include "seed/fused_decode.h"

namespace quire::cuda {
namespace seed {
namespace {

// The token's rows of the projection of a query head.
template <typename T>
class TokenRows {
 public:
  __device__ explicit TokenRows(const FusedDecodeParams& p)
      : p_(p),
        row_(static_cast<const T*>(p.attention.query) + blockIdx.y * p.attention.query_stride),
        bias_(static_cast<const T*>(p.bias)) {}

  // Elements [0, D) of a head of the projection, one after the other for the threads of the block:
  // calls write(element, value) with the bias added. The first `rotary_dim` are rotated.
  template <typename Write>
  __device__ void read(int64_t head, const float* cosines, int64_t rotary_dim,
                       const Write& write) const {
    const int64_t begin = head * p_.attention.head_size;
    const auto element = [this, begin](int64_t d) {
      const float x = to_float(row_[begin + d]);
      return bias_ != nullptr ? x + to_float(bias_[begin + d]) : x;
    };
    const TokenRotation rotation(cosines, rotary_dim, p_.is_neox);
    for (int64_t i = threadIdx.x; i < rotation.half; i += kThreads)
      rotation.rotate_read<T>(element, i, write);
    for (int64_t d = rotary_dim + threadIdx.x; d < p_.attention.head_size; d += kThreads)
      write(d, from_float<T>(element(d)));
  }

 private:
  const FusedDecodeParams& p_;
  const T* row_;
  const T* bias_;
};

template <typename T, int kHeadSize, int kBlockSize>
__global__ void __launch_bounds__(kThreads, kBlocks)
    fused_decode_kernel(const FusedDecodeParams fused) {
  begin_kernel();
  QUIRE_DYNAMIC_SHARED(shared);
  T* const query = reinterpret_cast<T*>(shared);
  T* const key = query + kHeadSize;
  T* const value = key + kHeadSize;
  const SeedAttentionParams& p = fused.attention;
  const int64_t seq = blockIdx.y;
  const int64_t head = blockIdx.x;
  const int64_t group = p.num_heads / p.num_kv_heads;
  const int token = p.seq_lens[seq] - 1;
  if (token < 0) return;  // padding

  const float* cosines = fused.cos_sin_cache + token * fused.cos_sin_stride;
  const TokenRows<T> rows(fused);
  const int64_t key_head = p.num_heads + head / group;
  rows.read(head, cosines, fused.rotary_dim, [query](int64_t d, T x) { query[d] = x; });
  rows.read(key_head, cosines, fused.rotary_dim, [key](int64_t d, T x) { key[d] = x; });
  rows.read(key_head + p.num_kv_heads, cosines, 0, [value](int64_t d, T x) { value[d] = x; });
  __syncthreads();

  SeedAttention<T, kHeadSize, kBlockSize> attention(p, reinterpret_cast<float*>(value + kHeadSize));
  if (head % group == 0) {
    T* keys = attention.block_of(p.key_cache, token / kBlockSize);
    T* values = attention.block_of(p.value_cache, token / kBlockSize);
    const int slot = token % kBlockSize;
    for (int d = static_cast<int>(threadIdx.x); d < kHeadSize; d += kThreads) {
      keys[key_index<T>(d, slot, kBlockSize)] = key[d];
      values[value_index(d, slot, kBlockSize)] = value[d];
    }
  }

  // The token itself, of which each warp computes the same logit, and those before it.
  float product = 0.f;
  for (int d = static_cast<int>(threadIdx.x % kWarpSize); d < kHeadSize; d += kWarpSize)
    product = fmaf(to_float(query[d]), to_float(key[d]), product);
  const float own = attention.logit(warp_sum(product), token);
  const Range before{0, token};
  const float largest = block_reduce<true>(fmaxf(attention.score(query, before), own));
  const float weight = expf(own - largest);
  const float sum = attention.exponentiate(before, largest) + weight;
  T* out = static_cast<T*>(p.out) + seq * p.out_stride + head * kHeadSize;
  attention.weigh(before, [out, value, weight, sum](int row, float x) {
    out[row] = from_float<T>(fmaf(weight, to_float(value[row]), x) / sum);
  });
}

}  // namespace
}  // namespace seed

void fused_decode(const FusedDecodeParams& p) {
  const cudaStream_t stream = current_stream();
  const SeedAttentionParams& attention = p.attention;
  const dim3 grid(static_cast<unsigned>(attention.num_heads), grid_size(attention.num_seqs));
  QUIRE_DISPATCH_DTYPE(
      attention.dtype, T, seed::dispatch_shape(attention, [&](auto head_size, auto block_size) {
        const size_t of_token = 3 * sizeof(T) * head_size();
        launch(seed::fused_decode_kernel<T, head_size(), block_size()>, grid, seed::kThreads,
               of_token + seed::shared_bytes(attention, attention.max_seq_len), stream, p);
      }));
}

}  // namespace quire::cuda
