// The operations on a CUDA device, in order on a stream. Pointers are to device memory unless a
// comment says otherwise.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "core/params.h"

namespace quire::cuda {

#define QUIRE_OP(name, Params, ...) \
  QUIRE_MUST_BE_DEFINED void name(const Params& params, cudaStream_t stream);
#include "ops.def"

// As Backend::plan_attention.
std::shared_ptr<AttentionPlan> plan_attention(const PagedAttentionParams& params,
                                              int64_t max_seq_len,
                                              std::shared_ptr<AttentionPlan> earlier,
                                              cudaStream_t stream);

// The stream of the calling thread.
cudaStream_t current_stream();

}  // namespace quire::cuda
