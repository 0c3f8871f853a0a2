// Holds the sampler on CUDA against that of the CPU, token by token, in the emulator, in each order
// of turns, with rows that several blocks share and rows of a block each. Mutants of the kernels
// are compiled with this (test_sampler_mutants.py): exits with 0 if they agree, 1 if not, 2 if a
// kernel did what no GPU allows.
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "cpu/cpu_ops.h"
#include "cuda/logits/sampler.cu"

namespace {

using namespace quire;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kVocabSize = 7003;  // a block reads more of it at once than one step

struct Filters {
  float temperature;
  int32_t top_k;
  float top_p, min_p;
};

// Greedy; by itself, and after one filter or two; with few candidates and with too many.
constexpr Filters kFilters[] = {
    {0.f, 0, 1.f, 0.f},       {1.f, 0, 1.f, 0.f},    {1.f, 0, 1.f, 0.2f},
    {30.f, 3, 1.f, 0.f},      {9.f, 0, 0.01f, 0.f},  {1.f, 0, 0.6f, 0.f},
    {4.f, 0, 0.98f, 0.f},     {1.f, 300, 0.9f, 0.f}, {1.f, 4000, 0.9f, 0.2f},
    {0.01f, 2500, 0.9f, 0.f}, {1.f, 3000, 1.f, 0.f}, {1.f, 6000, 1.f, 0.2f},
    {3000.f, 30, 0.5f, 0.f}};

// In a call: rows of several parts, and of one.
constexpr int64_t kRows[] = {1, 3, 9, 2};

// The best tokens of kEdges lie on both sides of where a row may be cut.
enum class Kind { kApart, kTied, kEqual, kEdges, kSpoilt };

struct Problem {
  int64_t rows, stride;
  std::vector<float> memory;
  std::vector<float> temperature, top_p, min_p;
  std::vector<int32_t> top_k, sequence_index;
  std::vector<int64_t> seed, position;

  // `shift` is the first row's distance from sixteen bytes, in logits.
  Problem(int64_t num_rows, const Filters& filters, Kind kind, int shift)
      : rows(num_rows), stride(kVocabSize + (shift == 0 ? 1 : 2)) {
    std::mt19937 random(17);
    std::normal_distribution<float> normal;
    memory.resize(rows * stride + 8, 99.f);
    for (int64_t row = 0; row < rows; ++row) {
      float* const logits = memory.data() + 4 + shift + row * stride;
      for (int i = 0; i < kVocabSize; ++i) {
        const float logit = 3 * normal(random);
        logits[i] = kind == Kind::kTied ? std::round(logit) : kind == Kind::kEqual ? -2.f : logit;
        if (kind == Kind::kEdges && (i + 1) % 1024 < 2) logits[i] = 20 + logit;
        if (i % 97 == 0) logits[i] = -kInfinity;
      }
      if (kind == Kind::kSpoilt) {
        logits[kVocabSize - 1] = row % 2 == 0 ? std::nanf("") : kInfinity;
        if (row % 3 == 2) std::fill(logits, logits + kVocabSize, -kInfinity);
      }
      temperature.push_back(filters.temperature);
      top_k.push_back(filters.top_k);
      top_p.push_back(filters.top_p);
      min_p.push_back(filters.min_p);
      sequence_index.push_back(static_cast<int32_t>(row));
      seed.push_back(row * 7919 + 3);
      position.push_back((int64_t{1} << 33) + row);
    }
    first = memory.data() + 4 + shift;
  }

  const float* first;
};

struct Drawn {
  std::vector<int64_t> token_ids;
  std::vector<char> ok;

  bool operator==(const Drawn& other) const {
    return token_ids == other.token_ids && ok == other.ok;
  }
};

template <typename Sample>
Drawn drawn(const Problem& problem, const Sample& sample) {
  Drawn result{std::vector<int64_t>(problem.rows, -1), std::vector<char>(problem.rows, 2)};
  SampleParams p{};
  p.logits = problem.first;
  p.row_stride = problem.stride;
  p.num_rows = problem.rows;
  p.vocab_size = kVocabSize;
  p.temperature = problem.temperature.data();
  p.top_k = problem.top_k.data();
  p.top_p = problem.top_p.data();
  p.min_p = problem.min_p.data();
  p.seed = problem.seed.data();
  p.sequence_index = problem.sequence_index.data();
  p.position = problem.position.data();
  p.token_ids = result.token_ids.data();
  p.ok = reinterpret_cast<bool*>(result.ok.data());
  sample(p);
  return result;
}

bool check(const Problem& problem, cpu::ThreadPool& pool) {
  const Drawn expected = drawn(
      problem, [&](const SampleParams& p) { cpu::sample(p, cpu::scalar::kernel_table(), pool); });
  return drawn(problem, [](const SampleParams& p) { cuda::sample(p, nullptr); }) == expected;
}

}  // namespace

int main() {
  cpu::ThreadPool pool(1);
  int number = 0;
  for (const auto order : {emu::Order::kForward, emu::Order::kReverse, emu::Order::kShuffled}) {
    emu::Machine::order = order;
    for (const Filters& filters : kFilters) {
      for (const Kind kind :
           {Kind::kApart, Kind::kTied, Kind::kEqual, Kind::kEdges, Kind::kSpoilt}) {
        const Problem problem(kRows[number % 4], filters, kind, number / 4 % 4);
        ++number;
        try {
          if (check(problem, pool)) continue;
        } catch (const emu::KernelError& error) {
          std::fprintf(stderr, "%s\n", error.what());
          return 2;
        }
        std::fprintf(stderr, "differs: order %d, top_k %d, top_p %g, kind %d\n", int(order),
                     filters.top_k, filters.top_p, int(kind));
        return 1;
      }
    }
  }
  return 0;
}
