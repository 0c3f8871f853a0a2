// The CUDA backend: every operation a kernel on the calling thread's stream.
#pragma once

#include "core/backend.h"
#include "seed/params.h"

namespace quire::cuda {

class CudaBackend final : public Backend {
 public:
  DType quantised_cache_dtype() const override { return DType::kFloat8E4M3; }
  void reshape_and_cache(const CacheIoParams& params) override;
  void gather_cached_kv(const CacheIoParams& params) override;
  void copy_blocks(const CopyBlocksParams& params) override;
  void swap_blocks(const SwapBlocksParams& params) override;
  std::shared_ptr<AttentionPlan> plan_attention(const PagedAttentionParams& params,
                                                int64_t max_seq_len,
                                                std::shared_ptr<AttentionPlan> earlier) override;
  void paged_attention(const PagedAttentionParams& params) override;
  void rms_norm(const NormParams& params) override;
  void fused_add_rms_norm(const NormParams& params) override;
  void layer_norm(const NormParams& params) override;
  void rotary_embedding(const RotaryParams& params) override;
  void rotary_and_cache(const RotaryCacheParams& params) override;
  void activation(const ActivationParams& params) override;
  void linear(const LinearParams& params) override;
  void apply_penalties(const PenaltyParams& params) override;
  void apply_token_mask(const TokenMaskParams& params) override;
  void top_logprobs(const TopLogprobsParams& params) override;
  void sample(const SampleParams& params) override;

  // Not an operation of every backend: for benchmarks and tests.
  void seed_attention(const SeedAttentionParams& params);

  // The stream of what the calling thread starts from now on: a cudaStream_t, 0 for the default.
  static void set_stream(uintptr_t stream);
};

}  // namespace quire::cuda
