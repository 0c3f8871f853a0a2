// Changes logits before a token is drawn from them.
#include <limits>
#include <vector>

#include "cpu/cpu_ops.h"
#include "ops/logits.h"

#define QUIRE_NAMESPACE quire::cpu
#define QUIRE_FUNCTION inline
#include "core/logits_math.h"

namespace quire::cpu {
namespace {

template <typename Body>
void for_each_row(ThreadPool& pool, int64_t rows, const Body& body) {
  pool.run(
      rows, [](void* context, int64_t row, int) { (*static_cast<const Body*>(context))(row); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

void penalize_row(const PenaltyParams& p, int64_t row) {
  const float repetition = p.repetition[row];
  const float frequency = p.frequency[row];
  const float presence = p.presence[row];
  if (repetition == 1.f && frequency == 0.f && presence == 0.f) return;
  const int32_t* token_ids = p.token_ids + row * p.token_stride;
  float* logits = p.logits + row * p.row_stride;
  std::vector<uint32_t> uses(static_cast<size_t>(p.vocab_size));
  for (int32_t i = 0; i < p.num_tokens[row]; ++i) {
    uint32_t& each = uses[static_cast<size_t>(token_ids[i])];
    each = i < p.num_prompt_tokens[row] ? each | kInPrompt : each + 1;
  }
  // Once for each token: its uses are cleared, so that a repetition is skipped.
  for (int32_t i = 0; i < p.num_tokens[row]; ++i) {
    const int32_t token = token_ids[i];
    uint32_t& each = uses[static_cast<size_t>(token)];
    if (each != 0) logits[token] = penalized(logits[token], each, repetition, frequency, presence);
    each = 0;
  }
}

void mask_row(const TokenMaskParams& p, int64_t row) {
  constexpr int64_t kBits = 32;
  float* logits = p.logits + row * p.row_stride;
  const int32_t* words = p.bitmask + row * p.mask_stride;
  for (int64_t begin = 0; begin < p.vocab_size; begin += kBits) {
    const auto allowed = static_cast<uint32_t>(words[begin / kBits]);
    if (allowed == 0xffffffffu) continue;
    for (int64_t bit = 0; bit < kBits && begin + bit < p.vocab_size; ++bit) {
      if ((allowed >> bit & 1) == 0) logits[begin + bit] = -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace

void apply_penalties(const PenaltyParams& params, const KernelTable&, ThreadPool& pool) {
  for_each_row(pool, params.num_rows, [&](int64_t row) { penalize_row(params, row); });
}

void apply_token_mask(const TokenMaskParams& params, const KernelTable&, ThreadPool& pool) {
  for_each_row(pool, params.num_rows, [&](int64_t row) { mask_row(params, row); });
}

}  // namespace quire::cpu
