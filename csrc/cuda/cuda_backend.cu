#include <utility>

#include "cuda/cuda_backend.h"
#include "cuda/cuda_ops.h"

namespace quire::cuda {
namespace {

thread_local cudaStream_t stream_of_thread = nullptr;

}  // namespace

cudaStream_t current_stream() {
  return stream_of_thread;
}

void CudaBackend::set_stream(uintptr_t stream) {
  stream_of_thread = reinterpret_cast<cudaStream_t>(stream);
}

std::shared_ptr<AttentionPlan> CudaBackend::plan_attention(const PagedAttentionParams& params,
                                                           int64_t max_seq_len,
                                                           std::shared_ptr<AttentionPlan> earlier) {
  return cuda::plan_attention(params, max_seq_len, std::move(earlier), stream_of_thread);
}

#define QUIRE_OP(name, Params, ...)              \
  void CudaBackend::name(const Params& params) { \
    cuda::name(params, stream_of_thread);        \
  }
#include "ops.def"

}  // namespace quire::cuda
