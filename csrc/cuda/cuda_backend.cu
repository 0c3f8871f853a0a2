#include <vector>

#include "cuda/attention/common.h"
#include "cuda/cuda_backend.h"
#include "cuda/kernels.h"
#include "cuda/linear/linear.h"
#include "seed/attention_v1.h"

namespace quire::cuda {
namespace {

// Of what the calling thread starts.
thread_local cudaStream_t stream = nullptr;
thread_local Workspace workspace;
thread_local LastingMemory lasting_partials;
thread_local SplitMemory split_memory;

// The values of a device array, once what the stream does with it is done.
std::vector<int32_t> fetch(const int32_t* device, int64_t count) {
  std::vector<int32_t> host(static_cast<size_t>(count));
  check(cudaMemcpyAsync(host.data(), device, host.size() * sizeof(int32_t), cudaMemcpyDefault,
                        stream),
        "fetch");
  check(cudaStreamSynchronize(stream), "fetch");
  return host;
}

}  // namespace

void CudaBackend::set_stream(uintptr_t handle) {
  stream = reinterpret_cast<cudaStream_t>(handle);
}

void CudaBackend::reshape_and_cache(const CacheIoParams& p) {
  cuda::reshape_and_cache(p, stream);
}
void CudaBackend::gather_cached_kv(const CacheIoParams& p) {
  cuda::gather_cached_kv(p, stream);
}
void CudaBackend::copy_blocks(const CopyBlocksParams& p) {
  cuda::copy_blocks(p, stream);
}
void CudaBackend::swap_blocks(const SwapBlocksParams& p) {
  cuda::swap_blocks(p, stream);
}
std::shared_ptr<AttentionPlan> CudaBackend::plan_attention(const PagedAttentionParams& p,
                                                           int64_t max_seq_len,
                                                           std::shared_ptr<AttentionPlan> earlier) {
  if (!attention_mma_serves(p)) return nullptr;
  auto plan = std::static_pointer_cast<DevicePlan>(std::move(earlier));
  if (plan == nullptr) plan = std::make_shared<DevicePlan>();
  if (max_seq_len == 0) {
    plan->make(p, p.seq_lens, p.query_start_loc, stream);
  } else {
    plan->make_fixed(p, p.seq_lens, p.query_start_loc, max_seq_len, lasting_partials, stream);
  }
  return plan;
}
void CudaBackend::paged_attention(const PagedAttentionParams& p) {
  if (!attention_mma_serves(p)) {
    attention_plain(p, stream);
  } else if (p.plan != nullptr) {
    attention_mma(p, *static_cast<const DevicePlan*>(p.plan), stream);
  } else {
    const std::vector<int32_t> seq_lens = fetch(p.seq_lens, p.num_seqs);
    const std::vector<int32_t> query_start_loc = fetch(p.query_start_loc, p.num_seqs + 1);
    static thread_local DevicePlan plan;
    plan.make(p, seq_lens.data(), query_start_loc.data(), stream);
    attention_mma(p, plan, stream);
  }
}
void CudaBackend::seed_attention(const SeedAttentionParams& p) {
  cuda::seed_attention(p, workspace, stream);
}
void CudaBackend::rms_norm(const NormParams& p) {
  cuda::rms_norm(p, stream);
}
void CudaBackend::fused_add_rms_norm(const NormParams& p) {
  cuda::fused_add_rms_norm(p, stream);
}
void CudaBackend::layer_norm(const NormParams& p) {
  cuda::layer_norm(p, stream);
}
void CudaBackend::rotary_embedding(const RotaryParams& p) {
  cuda::rotary_embedding(p, stream);
}
void CudaBackend::rotary_and_cache(const RotaryCacheParams& p) {
  cuda::rotary_and_cache(p, stream);
}
void CudaBackend::activation(const ActivationParams& p) {
  cuda::activation(p, stream);
}
void CudaBackend::linear(const LinearParams& p) {
  cuda::linear(p, split_memory, stream);
}
void CudaBackend::apply_penalties(const PenaltyParams& p) {
  cuda::apply_penalties(p, stream);
}
void CudaBackend::apply_token_mask(const TokenMaskParams& p) {
  cuda::apply_token_mask(p, stream);
}
void CudaBackend::top_logprobs(const TopLogprobsParams& p) {
  cuda::top_logprobs(p, stream);
}
void CudaBackend::sample(const SampleParams& p) {
  cuda::sample(p, stream);
}

}  // namespace quire::cuda
