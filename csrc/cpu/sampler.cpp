// Temperature, then min-p, top-k and top-p in that order, then an exponential race over what is
// left.
//
// With tokens ordered by (logit descending, index ascending), each filter keeps a prefix:
//   min-p   tokens at least min_p times as probable as the best
//   top-k   the first k of those
//   top-p   the shortest prefix of those whose renormalised probability reaches top_p
// so one cut (a logit and an index) describes the result. It is found without sorting the
// vocabulary: tokens are counted in bins of 1/64 of a logit below the maximum, and only the bin
// that holds the boundary is sorted. Probabilities are summed as integers of 2^-40, whose sum does
// not depend on the order of addition. Logits are scaled wherever they are read, and never copied.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "cpu/cpu_ops.h"
#include "ops/logits.h"

namespace quire::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kNoIndexCut = std::numeric_limits<int64_t>::max();

// What a cut counts: tokens, or what they weigh.
enum class Amount { kTokens, kWeight };

bool is_before(const Candidate& a, const Candidate& b) {
  return a.x > b.x || (a.x == b.x && a.index < b.index);
}

std::vector<Candidate> sorted_bin(const KernelTable& kernels, const ScaledLogits& row,
                                  const SampleCut& cut, int bin) {
  constexpr int64_t kBlock = 1024;
  Candidate block[kBlock];
  std::vector<Candidate> candidates;
  for (int64_t begin = 0; begin < row.size; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, row.size);
    const int64_t found = kernels.tokens_of_bin(row, cut, bin, begin, end, block);
    candidates.insert(candidates.end(), block, block + found);
  }
  std::sort(candidates.begin(), candidates.end(), is_before);
  return candidates;
}

// The shortest prefix, in order, of the tokens that `cut` keeps whose amounts add up to what
// `target` returns for the amount of all of them.
template <typename Target>
SampleCut prefix(const KernelTable& kernels, const ScaledLogits& row, const SampleCut& cut,
                 Amount amount, const Target& target_of) {
  int64_t bins[kNumBins] = {};
  kernels.add_to_bins(row, cut, amount == Amount::kWeight, bins);
  const int64_t target = target_of(std::accumulate(bins, bins + kNumBins, int64_t{0}));
  int64_t sum = 0;
  int boundary = 0;
  while (boundary < kNumBins && sum + bins[boundary] < target) sum += bins[boundary++];
  if (boundary == kNumBins) return cut;  // everything together does not exceed the target
  for (const Candidate& candidate : sorted_bin(kernels, row, cut, boundary)) {
    sum += amount == Amount::kWeight ? candidate.weight : 1;
    if (sum >= target) return {candidate.x, candidate.index};
  }
  return cut;
}

SampleCut filter(const SampleParams& p, const KernelTable& kernels, const ScaledLogits& scaled,
                 int64_t row) {
  SampleCut cut{-kInfinity, -1};  // keeps every finite x
  if (p.min_p[row] > 0.f) cut = {kernels.log(p.min_p[row]), kNoIndexCut};
  if (p.top_k[row] > 0 && p.top_k[row] < p.vocab_size) {
    cut = prefix(kernels, scaled, cut, Amount::kTokens,
                 [&](int64_t) -> int64_t { return p.top_k[row]; });
  }
  if (p.top_p[row] < 1.f) {
    cut = prefix(kernels, scaled, cut, Amount::kWeight, [&](int64_t total) {
      const double mass = std::ceil(static_cast<double>(p.top_p[row]) * static_cast<double>(total));
      return std::max<int64_t>(1, static_cast<int64_t>(mass));
    });
  }
  return cut;
}

void sample_row(const SampleParams& p, const KernelTable& kernels, int64_t row) {
  const float* logits = p.logits + row * p.row_stride;
  const LogitsScan scan = kernels.scan_logits(logits, p.vocab_size);
  p.ok[row] = scan.ok;
  p.token_ids[row] = scan.argmax;
  if (!scan.ok || p.temperature[row] == 0.f) return;

  const ScaledLogits scaled{logits, p.vocab_size, scan.max, p.temperature[row]};
  const SampleCut cut = filter(p, kernels, scaled, row);
  const DrawKey draw{static_cast<uint64_t>(p.seed[row]), p.sequence_index[row], p.position[row]};
  p.token_ids[row] = kernels.draw_token(scaled, cut, draw);
}

}  // namespace

void sample(const SampleParams& params, const KernelTable& kernels, ThreadPool& pool) {
  const auto body = [&](int64_t row) { sample_row(params, kernels, row); };
  using Body = decltype(body);
  pool.run(
      params.num_rows, [](void* context, int64_t row, int) { (*static_cast<Body*>(context))(row); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace quire::cpu
