// Holds penalties, masks and log-probabilities on CUDA against those of the CPU, bit by bit, in the
// emulator, in each order of turns. Mutants of the kernels are compiled with this
// (test_logits_mutants.py): exits with 0 if they agree, 1 if not, 2 if a kernel did what no GPU
// allows.
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cpu/cpu_ops.h"
#include "cuda/logits/logit_rules.cu"
#include "cuda/logits/top_logprobs.cu"

namespace {

using namespace quire;

constexpr int kRows = 4;
constexpr int kVocabSize = 9000;  // two slices of the vocabulary
constexpr int kTokens = 700;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Problem {
  std::vector<float> logits;
  std::vector<int32_t> tokens, bitmask;
  std::vector<int32_t> num_prompt_tokens{300, 0, 700, 20};
  std::vector<int32_t> num_tokens{700, 650, 700, 21};
  std::vector<float> repetition{1.5f, 1.f, 0.7f, 1.f};
  std::vector<float> frequency{0.3f, -0.2f, 0.f, 0.f};
  std::vector<float> presence{0.1f, 0.7f, 0.f, 0.f};
  std::vector<int64_t> chosen{5, 0, 8999, 77};

  Problem() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::geometric_distribution<int32_t> often(0.01);
    for (int i = 0; i < kRows * kVocabSize; ++i) {
      const float logit = 2 * normal(random);
      // Rows with many equals and with none; in one, zeros of both signs are the largest.
      logits.push_back(i / kVocabSize % 2 == 0 ? std::round(logit) : logit);
      if (i / kVocabSize == 2) logits.back() = -std::abs(logits.back()) + (i % 3 == 0 ? 0.f : -0.f);
      if (i % 97 == 0) logits.back() = -kInfinity;
    }
    for (int i = 0; i < kRows * kTokens; ++i)
      tokens.push_back(i % 3 == 0 ? static_cast<int32_t>(random() % kVocabSize)
                                  : std::min(often(random), kVocabSize - 1));
    for (int i = 0; i < kRows * ((kVocabSize + 31) / 32); ++i)
      bitmask.push_back(static_cast<int32_t>(random()));
  }

  PenaltyParams penalties(std::vector<float>& changed) const {
    PenaltyParams p{};
    p.logits = changed.data();
    p.token_ids = tokens.data();
    p.row_stride = kVocabSize;
    p.token_stride = kTokens;
    p.num_rows = kRows;
    p.vocab_size = kVocabSize;
    p.num_prompt_tokens = num_prompt_tokens.data();
    p.num_tokens = num_tokens.data();
    p.repetition = repetition.data();
    p.frequency = frequency.data();
    p.presence = presence.data();
    return p;
  }

  TokenMaskParams mask(std::vector<float>& changed) const {
    return {changed.data(), bitmask.data(), kVocabSize, (kVocabSize + 31) / 32, kRows, kVocabSize};
  }
};

struct Found {
  std::vector<float> logprobs, top_logprobs;
  std::vector<int64_t> ranks, top_token_ids;

  explicit Found(int num_top)
      : logprobs(kRows),
        top_logprobs(size_t(kRows) * num_top),
        ranks(kRows),
        top_token_ids(size_t(kRows) * num_top) {}

  TopLogprobsParams params(const Problem& problem) {
    TopLogprobsParams p{};
    p.logits = problem.logits.data();
    p.token_ids = problem.chosen.data();
    p.logprobs = logprobs.data();
    p.ranks = ranks.data();
    p.top_token_ids = top_token_ids.data();
    p.top_logprobs = top_logprobs.data();
    p.row_stride = kVocabSize;
    p.num_rows = kRows;
    p.vocab_size = kVocabSize;
    p.num_top = static_cast<int64_t>(top_logprobs.size()) / kRows;
    return p;
  }
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

bool agree(const Found& a, const Found& b) {
  // A NaN differs from itself here in no bit: both write the same one.
  return same_bits(a.logprobs, b.logprobs) && same_bits(a.top_logprobs, b.top_logprobs) &&
         same_bits(a.ranks, b.ranks) && same_bits(a.top_token_ids, b.top_token_ids);
}

bool check(const Problem& problem, cpu::ThreadPool& pool) {
  std::vector<float> expected = problem.logits;
  std::vector<float> actual = problem.logits;
  const cpu::KernelTable& kernels = cpu::scalar::kernel_table();
  cpu::apply_penalties(problem.penalties(expected), kernels, pool);
  cuda::apply_penalties(problem.penalties(actual), nullptr);
  if (!same_bits(actual, expected)) return false;
  cpu::apply_token_mask(problem.mask(expected), kernels, pool);
  cuda::apply_token_mask(problem.mask(actual), nullptr);
  if (!same_bits(actual, expected)) return false;
  for (const int num_top : {1, 20, 600}) {
    Found wanted(num_top);
    Found found(num_top);
    cpu::top_logprobs(wanted.params(problem), kernels, pool);
    cuda::top_logprobs(found.params(problem), nullptr);
    if (!agree(found, wanted)) return false;
  }
  return true;
}

}  // namespace

int main() {
  cpu::ThreadPool pool(1);
  Problem problem;
  Problem spoilt = problem;
  spoilt.logits[100] = kInfinity;  // seen by one thread alone
  spoilt.logits[2 * kVocabSize + 8000] = std::numeric_limits<float>::quiet_NaN();
  for (const auto order : {emu::Order::kForward, emu::Order::kReverse, emu::Order::kShuffled}) {
    emu::Machine::order = order;
    try {
      if (check(problem, pool) && check(spoilt, pool)) continue;
    } catch (const emu::KernelError& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 2;
    }
    std::fprintf(stderr, "differs: order %d\n", int(order));
    return 1;
  }
  return 0;
}
