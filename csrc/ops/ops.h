// The operations as callers see them: tensors in, every check made once, the backend called with
// raw pointers.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/backend.h"
#include "core/tensor.h"

namespace quire::ops {

void reshape_and_cache(Backend& backend, const Tensor& key, const Tensor& value,
                       const Tensor& key_cache, const Tensor& value_cache,
                       const Tensor& slot_mapping, const std::optional<Tensor>& k_scale,
                       const std::optional<Tensor>& v_scale);
void gather_cached_kv(Backend& backend, const Tensor& key_out, const Tensor& value_out,
                      const Tensor& key_cache, const Tensor& value_cache,
                      const Tensor& slot_mapping, const std::optional<Tensor>& k_scale,
                      const std::optional<Tensor>& v_scale);
void copy_blocks(Backend& backend, const std::vector<Tensor>& key_caches,
                 const std::vector<Tensor>& value_caches, const Tensor& block_mapping);
void swap_blocks(Backend& backend, const Tensor& src_cache, const Tensor& dst_cache,
                 const Tensor& block_mapping);

// `seq_lens` and `query_start_loc` are the host's; null where the backend has nothing to plan.
std::shared_ptr<AttentionPlan> plan_attention(Backend& backend, const Tensor& query,
                                              const Tensor& key_cache, const Tensor& value_cache,
                                              const Tensor& seq_lens, const Tensor& query_start_loc,
                                              std::optional<int64_t> sliding_window,
                                              std::optional<int64_t> max_seq_len,
                                              std::shared_ptr<AttentionPlan> earlier);
void paged_attention(Backend& backend, const Tensor& out, const Tensor& query,
                     const Tensor& key_cache, const Tensor& value_cache, const Tensor& block_tables,
                     const Tensor& seq_lens, const Tensor& query_start_loc, double scale,
                     const std::optional<Tensor>& alibi_slopes,
                     std::optional<int64_t> sliding_window, std::optional<double> soft_cap,
                     const std::optional<Tensor>& k_scale, const std::optional<Tensor>& v_scale,
                     const AttentionPlan* plan);

void rms_norm(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& weight,
              double eps);
void fused_add_rms_norm(Backend& backend, const Tensor& x, const Tensor& residual,
                        const Tensor& weight, double eps);
void layer_norm(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& weight,
                const std::optional<Tensor>& bias, double eps);
void rotary_embedding(Backend& backend, const Tensor& positions, const Tensor& query,
                      const Tensor& key, const Tensor& cos_sin_cache, bool is_neox);
void rotary_and_cache(Backend& backend, const Tensor& positions, const Tensor& query,
                      const Tensor& key, const Tensor& value, const Tensor& cos_sin_cache,
                      bool is_neox, const Tensor& key_cache, const Tensor& value_cache,
                      const Tensor& slot_mapping, const std::optional<Tensor>& k_scale,
                      const std::optional<Tensor>& v_scale);
void activation(Backend& backend, const Tensor& out, const Tensor& x, Activation activation,
                bool gated);

// A GPU only.
void linear(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& weight,
            const std::optional<Tensor>& bias, int64_t total_features);

void apply_penalties(Backend& backend, const Tensor& logits, const Tensor& token_ids,
                     const Tensor& num_prompt_tokens, const Tensor& num_tokens,
                     const Tensor& repetition_penalty, const Tensor& frequency_penalty,
                     const Tensor& presence_penalty);
void apply_token_mask(Backend& backend, const Tensor& logits, const Tensor& bitmask);
void top_logprobs(Backend& backend, const Tensor& logprobs, const Tensor& ranks,
                  const Tensor& top_token_ids, const Tensor& top_logprobs, const Tensor& logits,
                  const Tensor& token_ids);
void sample(Backend& backend, const Tensor& token_ids, const Tensor& ok, const Tensor& logits,
            const Tensor& temperature, const Tensor& top_k, const Tensor& top_p,
            const Tensor& min_p, const Tensor& seed, const Tensor& sequence_index,
            const Tensor& position);

}  // namespace quire::ops
