// The CPU backend: the kernels of one instruction set on one thread pool.
#pragma once

#include <memory>
#include <string>

#include "core/backend.h"
#include "cpu/kernel_table.h"

namespace quire::cpu {

class CpuBackend final : public Backend {
 public:
  // The best instruction set of this machine, or that of the environment variable QUIRE_ISA; one
  // thread per core that this process may use.
  CpuBackend();

  DType quantised_cache_dtype() const override { return DType::kInt8; }
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

  // Neither may run beside an operation.
  void set_isa(const std::string& name);
  void set_num_threads(int num_threads);

  // Asks for huge pages behind the whole pages of a buffer, best before its first use. Without
  // effect where the system offers none.
  static void advise_huge_pages(void* data, int64_t bytes);

  const KernelTable& kernels() const { return *kernels_; }
  uint64_t stream_read(const void* data, int64_t bytes);

 private:
  const KernelTable* kernels_;
  std::unique_ptr<ThreadPool> pool_;
};

}  // namespace quire::cpu
