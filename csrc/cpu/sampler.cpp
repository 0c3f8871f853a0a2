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
// not depend on the order of addition.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/cpu_ops.h"
#include "ops/logits.h"

namespace quire::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kNoIndexCut = std::numeric_limits<int64_t>::max();
constexpr float kBinsPerUnit = 64.f;
constexpr int kNumBins = 2048;  // 32 units; every token below weighs 0 and lies in the last bin

struct Candidate {
  float x;
  int64_t index;
  int64_t weight;

  bool operator<(const Candidate& other) const {
    return x > other.x || (x == other.x && index < other.index);
  }
};

bool is_kept(const SampleCut& cut, float x, int64_t index) {
  return x > cut.x_cut || (x == cut.x_cut && index <= cut.index_cut);
}

int bin_of(float x) {
  const float bin = -x * kBinsPerUnit;
  return bin < kNumBins - 1 ? static_cast<int>(bin) : kNumBins - 1;
}

// One row being sampled. x holds (logit - max) / temperature.
class RowFilter {
 public:
  RowFilter(const KernelTable& kernels, const std::vector<float>& x) : x_(x), weights_(x.size()) {
    kernels.fixed_point_weights(x.data(), static_cast<int64_t>(x.size()), weights_.data());
  }

  // The cut after `k` more tokens of those that `cut` keeps.
  SampleCut top_k(const SampleCut& cut, int64_t k) const {
    return prefix(cut, k, [](int64_t) { return int64_t{1}; });
  }

  // The cut after the shortest prefix that weighs at least p of what `cut` keeps.
  SampleCut top_p(const SampleCut& cut, float p) const {
    int64_t total = 0;
    for (size_t i = 0; i < x_.size(); ++i) {
      if (is_kept(cut, x_[i], static_cast<int64_t>(i))) total += weights_[i];
    }
    const auto target =
        static_cast<int64_t>(std::ceil(static_cast<double>(p) * static_cast<double>(total)));
    return prefix(cut, std::max<int64_t>(1, target), [this](int64_t i) { return weights_[i]; });
  }

 private:
  // The shortest prefix, in order, of the tokens kept by `cut` whose amounts add up to `target`.
  template <typename Amount>
  SampleCut prefix(const SampleCut& cut, int64_t target, const Amount& amount) const {
    std::vector<int64_t> bins(kNumBins);
    for_each_kept(cut, [&](int64_t i) { bins[bin_of(x_[i])] += amount(i); });
    int64_t sum = 0;
    int boundary = 0;
    while (boundary < kNumBins && sum + bins[boundary] < target) sum += bins[boundary++];
    if (boundary == kNumBins) return cut;  // everything together does not exceed the target

    std::vector<Candidate> candidates;
    for_each_kept(cut, [&](int64_t i) {
      if (bin_of(x_[i]) == boundary) candidates.push_back({x_[i], i, amount(i)});
    });
    std::sort(candidates.begin(), candidates.end());
    for (const Candidate& candidate : candidates) {
      sum += candidate.weight;
      if (sum >= target) return {candidate.x, candidate.index};
    }
    return cut;
  }

  template <typename Body>
  void for_each_kept(const SampleCut& cut, const Body& body) const {
    for (size_t i = 0; i < x_.size(); ++i) {
      if (is_kept(cut, x_[i], static_cast<int64_t>(i))) body(static_cast<int64_t>(i));
    }
  }

  const std::vector<float>& x_;
  std::vector<int64_t> weights_;
};

SampleCut filter(const SampleParams& p, const KernelTable& kernels, const std::vector<float>& x,
                 int64_t row) {
  SampleCut cut{-kInfinity, -1};  // keeps every finite x
  if (p.min_p[row] > 0.f) cut = {kernels.log(p.min_p[row]), kNoIndexCut};
  const bool limits_count = p.top_k[row] > 0 && p.top_k[row] < p.vocab_size;
  const bool limits_mass = p.top_p[row] < 1.f;
  if (!limits_count && !limits_mass) return cut;
  const RowFilter row_filter(kernels, x);
  if (limits_count) cut = row_filter.top_k(cut, p.top_k[row]);
  if (limits_mass) cut = row_filter.top_p(cut, p.top_p[row]);
  return cut;
}

void sample_row(const SampleParams& p, const KernelTable& kernels, int64_t row) {
  const float* logits = p.logits + row * p.row_stride;
  const LogitsScan scan = kernels.scan_logits(logits, p.vocab_size);
  p.ok[row] = scan.ok;
  p.token_ids[row] = scan.argmax;
  if (!scan.ok || p.temperature[row] == 0.f) return;

  std::vector<float> x(p.vocab_size);
  kernels.scale_logits(logits, p.vocab_size, scan.max, p.temperature[row], x.data());
  const SampleCut cut = filter(p, kernels, x, row);
  const DrawKey draw{static_cast<uint64_t>(p.seed[row]), p.sequence_index[row], p.position[row]};
  p.token_ids[row] = kernels.draw_token(x.data(), p.vocab_size, cut, draw);
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
