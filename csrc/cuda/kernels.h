// The operations on a CUDA device, in order on a stream. Pointers are the device's unless a comment
// says otherwise.
#pragma once

#include <cuda_runtime.h>

#include "core/params.h"

namespace quire::cuda {

void reshape_and_cache(const CacheIoParams& p, cudaStream_t stream);
void gather_cached_kv(const CacheIoParams& p, cudaStream_t stream);
// `caches`, `block_bytes` and `block_mapping` are the host's, and may be gone on return.
void copy_blocks(const CopyBlocksParams& p, cudaStream_t stream);
// `block_mapping` is the host's; `src` and `dst` are anybody's.
void swap_blocks(const SwapBlocksParams& p, cudaStream_t stream);

void rms_norm(const NormParams& p, cudaStream_t stream);
void fused_add_rms_norm(const NormParams& p, cudaStream_t stream);
void layer_norm(const NormParams& p, cudaStream_t stream);
void rotary_embedding(const RotaryParams& p, cudaStream_t stream);
void rotary_and_cache(const RotaryCacheParams& p, cudaStream_t stream);
void activation(const ActivationParams& p, cudaStream_t stream);

void apply_penalties(const PenaltyParams& p, cudaStream_t stream);
void apply_token_mask(const TokenMaskParams& p, cudaStream_t stream);
void top_logprobs(const TopLogprobsParams& p, cudaStream_t stream);
void sample(const SampleParams& p, cudaStream_t stream);

}  // namespace quire::cuda
