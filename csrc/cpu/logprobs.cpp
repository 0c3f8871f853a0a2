// Log-probabilities of chosen tokens and of the most probable ones.
#include <algorithm>
#include <limits>
#include <vector>

#include "cpu/cpu_ops.h"
#include "ops/logits.h"

#define QUIRE_NAMESPACE quire::cpu
#define QUIRE_FUNCTION inline
#include "core/logits_math.h"

namespace quire::cpu {
namespace {

struct Candidate {
  float logit;
  int64_t token_id;

  // Better: more probable or, between equals, of the lower id.
  bool operator<(const Candidate& other) const {
    return logit > other.logit || (logit == other.logit && token_id < other.token_id);
  }
};

// The best `count` tokens, best first: a heap whose top is the worst of those kept so far.
std::vector<Candidate> best_tokens(const float* logits, int64_t vocab_size, int64_t count) {
  std::vector<Candidate> kept;
  kept.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) kept.push_back({logits[i], i});
  std::make_heap(kept.begin(), kept.end());
  if (count > 0) {
    for (int64_t i = count; i < vocab_size; ++i) {
      if (!(logits[i] > kept.front().logit)) continue;
      std::pop_heap(kept.begin(), kept.end());
      kept.back() = {logits[i], i};
      std::push_heap(kept.begin(), kept.end());
    }
  }
  std::sort_heap(kept.begin(), kept.end());
  return kept;
}

void top_logprobs_row(const TopLogprobsParams& p, const KernelTable& kernels, int64_t row) {
  const float* logits = p.logits + row * p.row_stride;
  int64_t* top_token_ids = p.top_token_ids + row * p.num_top;
  float* top_logprobs = p.top_logprobs + row * p.num_top;
  const LogitsScan scan = kernels.scan_logits(logits, p.vocab_size);
  if (!scan.ok) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    p.logprobs[row] = kNan;
    p.ranks[row] = 1;
    std::fill_n(top_token_ids, p.num_top, 0);
    std::fill_n(top_logprobs, p.num_top, kNan);
    return;
  }
  const double log_sum = log_of_weights(kernels.sum_weights(logits, p.vocab_size, scan.max));
  const float chosen = logits[p.token_ids[row]];
  int64_t larger = 0;
  for (int64_t i = 0; i < p.vocab_size; ++i) larger += logits[i] > chosen;
  p.logprobs[row] = logprob_of(chosen, scan.max, log_sum);
  p.ranks[row] = larger + 1;
  const std::vector<Candidate> best = best_tokens(logits, p.vocab_size, p.num_top);
  for (size_t i = 0; i < best.size(); ++i) {
    top_token_ids[i] = best[i].token_id;
    top_logprobs[i] = logprob_of(best[i].logit, scan.max, log_sum);
  }
}

}  // namespace

void top_logprobs(const TopLogprobsParams& params, const KernelTable& kernels, ThreadPool& pool) {
  const auto body = [&](int64_t row) { top_logprobs_row(params, kernels, row); };
  using Body = decltype(body);
  pool.run(
      params.num_rows, [](void* context, int64_t row, int) { (*static_cast<Body*>(context))(row); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace quire::cpu
