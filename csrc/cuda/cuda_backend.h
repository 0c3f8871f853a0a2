// The CUDA backend: every operation runs on the calling thread's stream.
#pragma once

#include "core/backend.h"

namespace quire::cuda {

class CudaBackend final : public Backend {
 public:
  DType quantised_cache_dtype() const override { return DType::kFloat8E4M3; }
  std::shared_ptr<AttentionPlan> plan_attention(const PagedAttentionParams& params,
                                                int64_t max_seq_len,
                                                std::shared_ptr<AttentionPlan> earlier) override;

#define QUIRE_OP(name, Params, ...) void name(const Params& params) override;
#include "ops.def"

  // The stream that the calling thread uses from now on: a cudaStream_t, 0 for the default.
  static void set_stream(uintptr_t stream);
};

}  // namespace quire::cuda
