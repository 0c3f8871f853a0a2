// One device's kernels. Every operation is pure virtual, so a backend that lacks one does not
// compile.
#pragma once

#include <memory>

#include "core/params.h"

namespace quire {

// What a backend has worked out for the attention of a step, once for all of its layers.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // What caches may be of instead of the activations' type.
  virtual DType quantised_cache_dtype() const = 0;

  virtual void reshape_and_cache(const CacheIoParams& params) = 0;
  virtual void gather_cached_kv(const CacheIoParams& params) = 0;
  virtual void copy_blocks(const CopyBlocksParams& params) = 0;
  virtual void swap_blocks(const SwapBlocksParams& params) = 0;
  // Null where there is nothing to work out beforehand. The arrays of `params` are the host's; its
  // tensors say only how they are laid out. `earlier`, if there is one, is worked out anew and
  // returned, and keeps its memory. With a `max_seq_len`, which only steps of at most one row to a
  // sequence may have, a plan keeps its addresses and the size of its launches, whatever the
  // lengths up to that one: what a captured graph needs; 0 without one.
  virtual std::shared_ptr<AttentionPlan> plan_attention(const PagedAttentionParams& params,
                                                        int64_t max_seq_len,
                                                        std::shared_ptr<AttentionPlan> earlier) = 0;
  virtual void paged_attention(const PagedAttentionParams& params) = 0;
  virtual void rms_norm(const NormParams& params) = 0;
  virtual void fused_add_rms_norm(const NormParams& params) = 0;
  virtual void layer_norm(const NormParams& params) = 0;
  virtual void rotary_embedding(const RotaryParams& params) = 0;
  virtual void rotary_and_cache(const RotaryCacheParams& params) = 0;
  virtual void activation(const ActivationParams& params) = 0;
  virtual void linear(const LinearParams& params) = 0;
  virtual void apply_penalties(const PenaltyParams& params) = 0;
  virtual void apply_token_mask(const TokenMaskParams& params) = 0;
  virtual void top_logprobs(const TopLogprobsParams& params) = 0;
  virtual void sample(const SampleParams& params) = 0;
};

}  // namespace quire
