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
  std::shared_ptr<AttentionPlan> plan_attention(const PagedAttentionParams& params,
                                                int64_t max_seq_len,
                                                std::shared_ptr<AttentionPlan> earlier) override;

#define QUIRE_OP(name, Params, ...) void name(const Params& params) override;
#include "ops.def"

  // Neither may be called while an operation runs.
  void set_isa(const std::string& name);
  void set_num_threads(int num_threads);

  // Asks for huge pages for the whole pages of a buffer, best before its first use. No effect on
  // systems without them.
  static void advise_huge_pages(void* data, int64_t bytes);

  const KernelTable& kernels() const { return *kernels_; }
  uint64_t stream_read(const void* data, int64_t bytes);

 private:
  const KernelTable* kernels_;
  std::unique_ptr<ThreadPool> pool_;
};

}  // namespace quire::cpu
