// Holds the kernel of attention over latent rows against the plain one, and each of its shapes
// against the others bit by bit, in the emulator, in each order of turns. Mutants of the kernel are
// compiled with this (test_latent_mutants.py): exits with 0 if they agree, 1 if not, 2 if the
// kernel did what no GPU allows.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "attention_problem.h"
#include "cuda/attention/latent.cuh"
#include "cuda/attention/merge.cuh"
#include "cuda/attention/mma.cuh"
#include "cuda/launch.h"

namespace {

using namespace quire;
using namespace quire::cuda;

template <int kGroups, int kStages>
void run(const PagedAttentionParams& p, int blocks_at_once) {
  using Shape = LatentShape<bf16, kGroups, kStages>;
  const WorkPlan plan = plan_with_idle_blocks(p, Shape::kColumns, blocks_at_once);
  const size_t rows = size_t(plan.num_slots) * Shape::kColumns;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> acc(rows * kLatentValueSize, nan), max(rows, nan), sum(rows, nan);
  const PartialResults partials{acc.data(), max.data(), sum.data()};
  launch(attention_latent_kernel<bf16, kGroups, kStages>, unsigned(plan.items.size()),
         Shape::kThreads, Shape::kSharedBytes, nullptr, p, plan.items.data(), partials);
  launch(attention_merge_kernel<bf16, kLatentValueSize, Shape::kColumns>,
         merge_grid(kLatentValueSize, Shape::kColumns, unsigned(plan.merges.size())), kMmaThreads,
         0, nullptr, p, plan.merges.data(), partials);
}

// Row by row, relative to the row's size; probabilities and results are rounded to bfloat16.
bool agree(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  for (size_t row = 0; row < a.size(); row += kLatentValueSize) {
    double error = 0;
    double size = 0;
    for (size_t i = row; i < row + kLatentValueSize; ++i) {
      error += std::pow(to_float(a[i]) - to_float(b[i]), 2);
      size += std::pow(to_float(b[i]), 2);
    }
    if (!(std::sqrt(error / size) < 6e-3)) return false;
  }
  return true;
}

// Each shape that a device is given.
constexpr void (*kRuns[])(const PagedAttentionParams&, int) = {run<1, 2>, run<1, 4>, run<2, 2>,
                                                               run<2, 3>};
// Few blocks at once leave sequences whole, more cut them into pairs of partitions, many into
// single ones.
constexpr int kBlocksAtOnce[] = {3, 14, 101};
constexpr emu::Order kOrders[] = {emu::Order::kForward, emu::Order::kReverse,
                                  emu::Order::kShuffled};

}  // namespace

int main() {
  // Decoding behind three partitions, one and none, chunks whose columns fill blocks and do not.
  Problem<bf16, kLatentKeySize> problem({1, 560, 46, 1700, 33}, {0, 1, 2, 14, 15, 20});
  const bf16 nan = from_float<bf16>(std::numeric_limits<float>::quiet_NaN());
  const size_t count = size_t(problem.query_start_loc.back()) * kHeads * kLatentValueSize;
  int turn = 0;
  for (const int window : {0, 45, 530}) {
    std::vector<bf16> plain(count, nan), first;
    PagedAttentionParams p = problem.params(plain);
    p.out = {plain.data(), kHeads * kLatentValueSize, kLatentValueSize};
    p.value_cache = p.key_cache;
    p.value_size = kLatentValueSize;
    p.scale = 0.06f;
    if (window > 0) {
      p.sliding_window = window;
      p.alibi_slopes = problem.alibi_slopes.data();
      p.sinks = problem.sinks.data();
    }
    if (window == 45) p.soft_cap = 3.f;
    attention_plain(p, nullptr);
    for (const auto run : kRuns) {
      for (const int blocks_at_once : kBlocksAtOnce) {
        emu::Machine::order = kOrders[turn++ % 3];
        std::vector<bf16> actual(count, nan);
        p.out.data = actual.data();
        try {
          run(p, blocks_at_once);
        } catch (const emu::KernelError& error) {
          std::fprintf(stderr, "%s\n", error.what());
          return 2;
        }
        if (first.empty()) first = actual;
        const bool has_same_bits =
            std::memcmp(actual.data(), first.data(), actual.size() * sizeof(bf16)) == 0;
        if (!has_same_bits || !agree(actual, plain)) {
          std::fprintf(stderr, "differs: shape and order %d, %d blocks, window %d\n", turn - 1,
                       blocks_at_once, window);
          return 1;
        }
      }
      ++turn;  // another order for each shape
    }
  }
  return 0;
}
