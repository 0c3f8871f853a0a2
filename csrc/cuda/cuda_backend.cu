#include <vector>

#include "cuda/attention.h"
#include "cuda/attention_v1.h"
#include "cuda/cuda_backend.h"
#include "cuda/kernels.h"

namespace quire::cuda {
namespace {

// Of what the calling thread starts.
thread_local cudaStream_t stream = nullptr;
thread_local Workspace workspace;

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
std::unique_ptr<AttentionPlan> CudaBackend::plan_attention(const PagedAttentionParams& p) {
  if (!attention_mma_serves(p)) return nullptr;
  return std::make_unique<DevicePlan>(p, p.seq_lens, p.query_start_loc, stream);
}
void CudaBackend::paged_attention(const PagedAttentionParams& p) {
  if (!attention_mma_serves(p)) {
    attention_plain(p, stream);
  } else if (p.plan != nullptr) {
    attention_mma(p, *static_cast<const DevicePlan*>(p.plan), stream);
  } else {
    const std::vector<int32_t> seq_lens = fetch(p.seq_lens, p.num_seqs);
    const std::vector<int32_t> query_start_loc = fetch(p.query_start_loc, p.num_seqs + 1);
    attention_mma(p, DevicePlan(p, seq_lens.data(), query_start_loc.data(), stream), stream);
    check(cudaStreamSynchronize(stream), "attention");  // before the plan goes
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
void CudaBackend::sample(const SampleParams& p) {
  cuda::sample(p, stream);
}

}  // namespace quire::cuda
