// The attention kernels that the field began with, for benchmarks and tests; a CUDA device only.
#pragma once

#include <optional>

#include "core/tensor.h"
#include "cuda/cuda_backend.h"

namespace quire::ops {

// One query token of each sequence, over caches of their own layout. `max_seq_len` is the largest
// of `seq_lens`; the second version is `is_partitioned`.
void paged_attention_v1(cuda::CudaBackend& backend, const Tensor& out, const Tensor& query,
                        const Tensor& key_cache, const Tensor& value_cache,
                        const Tensor& block_tables, const Tensor& seq_lens, double scale,
                        const std::optional<Tensor>& alibi_slopes, int64_t max_seq_len,
                        bool is_partitioned);

}  // namespace quire::ops
