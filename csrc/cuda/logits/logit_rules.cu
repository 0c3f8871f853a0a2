// Changes logits before a token is drawn from them: bit by bit what cpu/logit_rules.cpp does, but
// for the soft cap, whose tanh is CUDA's.
#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
#include "ops/logits.h"

#define QUIRE_NAMESPACE quire::cuda
#define QUIRE_FUNCTION __device__ __forceinline__
#include "core/logits_math.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;
// Tokens of a block, whose uses it counts in shared memory: as integers, so that order does not
// matter.
constexpr int kSlice = 8192;

__host__ __device__ __forceinline__ int64_t num_slices(int64_t vocab_size, int64_t slice) {
  return (vocab_size + slice - 1) / slice;
}

// A block for each slice of the vocabulary and row. Each looks through all tokens of its row.
__global__ void __launch_bounds__(kThreads) penalty_kernel(const PenaltyParams p) {
  begin_kernel();
  QUIRE_SHARED(uint32_t, uses, kSlice);
  const int64_t slices = num_slices(p.vocab_size, kSlice);
  const int64_t row = blockIdx.x / slices;
  const float repetition = p.repetition[row];
  const float frequency = p.frequency[row];
  const float presence = p.presence[row];
  if (repetition == 1.f && frequency == 0.f && presence == 0.f) return;
  for (int i = static_cast<int>(threadIdx.x); i < kSlice; i += kThreads) uses[i] = 0;
  __syncthreads();
  const int64_t begin = blockIdx.x % slices * kSlice;
  const int32_t* token_ids = p.token_ids + row * p.token_stride;
  const int32_t num_prompt_tokens = p.num_prompt_tokens[row];
  const int32_t num_tokens = p.num_tokens[row];
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_tokens; i += kThreads) {
    const int64_t at = token_ids[i] - begin;
    if (at < 0 || at >= kSlice) continue;
    if (i < num_prompt_tokens) {
      atomicOr(&uses[at], kInPrompt);
    } else {
      atomicAdd(&uses[at], 1u);
    }
  }
  __syncthreads();
  float* logits = p.logits + row * p.row_stride + begin;
  const int64_t end = min(int64_t{kSlice}, p.vocab_size - begin);
  for (int i = static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    if (uses[i] != 0) logits[i] = penalized(logits[i], uses[i], repetition, frequency, presence);
  }
}

// A block for as many tokens as it has threads, of each row. A warp has a word of the mask.
__global__ void __launch_bounds__(kThreads) token_mask_kernel(const TokenMaskParams p) {
  begin_kernel();
  const int64_t slices = num_slices(p.vocab_size, kThreads);
  const int64_t row = blockIdx.x / slices;
  const int64_t token = blockIdx.x % slices * kThreads + threadIdx.x;
  if (token >= p.vocab_size) return;
  const auto allowed = static_cast<uint32_t>(p.bitmask[row * p.mask_stride + token / kWarpSize]);
  if ((allowed >> token % kWarpSize & 1) == 0) p.logits[row * p.row_stride + token] = -INFINITY;
}

// A block for as many tokens as it has threads, of each row.
__global__ void __launch_bounds__(kThreads) soft_cap_kernel(const SoftCapParams p) {
  begin_kernel();
  const int64_t slices = num_slices(p.vocab_size, kThreads);
  const int64_t row = blockIdx.x / slices;
  const int64_t token = blockIdx.x % slices * kThreads + threadIdx.x;
  if (token >= p.vocab_size) return;
  float* logit = p.logits + row * p.row_stride + token;
  *logit = p.cap * tanhf(*logit / p.cap);
}

}  // namespace

void apply_penalties(const PenaltyParams& p, cudaStream_t stream) {
  launch(penalty_kernel, grid_size(p.num_rows * num_slices(p.vocab_size, kSlice)), kThreads, 0,
         stream, p);
}

void apply_token_mask(const TokenMaskParams& p, cudaStream_t stream) {
  launch(token_mask_kernel, grid_size(p.num_rows * num_slices(p.vocab_size, kThreads)), kThreads, 0,
         stream, p);
}

void apply_soft_cap(const SoftCapParams& p, cudaStream_t stream) {
  launch(soft_cap_kernel, grid_size(p.num_rows * num_slices(p.vocab_size, kThreads)), kThreads, 0,
         stream, p);
}

}  // namespace quire::cuda
