// Holds the attention kernel on tensor cores against the plain one, in the emulator, in each order
// of turns. Mutants of the kernel are compiled with this (test_mutants.py): exits with 0 if they
// agree, 1 if not, 2 if the kernel did what no GPU allows.
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "attention_problem.h"
#include "cuda/attention/merge.cuh"
#include "cuda/attention/mma.cuh"
#include "cuda/launch.h"

namespace {

using namespace quire;
using namespace quire::cuda;

constexpr int kHeadSize = 64;
constexpr int kColumnTiles = 1;

template <typename Cached, int kStages>
void run_mma(const PagedAttentionParams& p, int blocks_at_once) {
  using Shape = MmaShape<Cached, kHeadSize, kColumnTiles, kStages>;
  const WorkPlan plan = plan_with_idle_blocks(p, Shape::kColumns, blocks_at_once);
  const size_t rows = size_t(plan.num_slots) * Shape::kColumns;
  std::vector<float> acc(rows * kHeadSize), max(rows), sum(rows);
  const PartialResults partials{acc.data(), max.data(), sum.data()};
  launch(attention_mma_kernel<bf16, Cached, kHeadSize, kColumnTiles, kStages>,
         unsigned(plan.items.size()), kMmaThreads, Shape::kSharedBytes, nullptr, p,
         plan.items.data(), partials);
  launch(attention_merge_kernel<bf16, kHeadSize, Shape::kColumns>,
         merge_grid(kHeadSize, Shape::kColumns, unsigned(plan.merges.size())), kMmaThreads, 0,
         nullptr, p, plan.merges.data(), partials);
}

// Row by row, relative to the row's size; probabilities and results are rounded to bfloat16.
bool agree(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  constexpr size_t kRow = kHeads * kHeadSize;
  for (size_t row = 0; row < a.size(); row += kRow) {
    double error = 0;
    double size = 0;
    for (size_t i = row; i < row + kRow; ++i) {
      error += std::pow(to_float(a[i]) - to_float(b[i]), 2);
      size += std::pow(to_float(b[i]), 2);
    }
    if (!(std::sqrt(error / size) < 6e-3)) return false;
  }
  return true;
}

template <typename Cached>
int compare() {
  Problem<Cached, kHeadSize> problem;
  const bf16 nan = from_float<bf16>(std::numeric_limits<float>::quiet_NaN());
  for (const int window : {0, 45, 530}) {
    std::vector<bf16> expected(problem.query.size(), nan);
    PagedAttentionParams p = problem.params(expected);
    if (window > 0) {
      p.sliding_window = window;
      p.alibi_slopes = problem.alibi_slopes.data();
      p.sinks = problem.sinks.data();
    }
    if (window == 45) p.soft_cap = 3.f;
    attention_plain(p, nullptr);
    for (const auto order : {emu::Order::kForward, emu::Order::kReverse, emu::Order::kShuffled}) {
      // Few blocks at once leave sequences whole, more cut them into pairs of partitions, many into
      // single ones.
      for (const int blocks_at_once : {3, 28, 101}) {
        emu::Machine::order = order;
        std::vector<bf16> actual(problem.query.size(), nan);
        p.out.data = actual.data();
        try {
          // Each depth of the pipeline that a device is given, in turn.
          constexpr int kMost = most_stages<Cached, kHeadSize>();
          switch (blocks_at_once % 3) {
            case 0:
              run_mma<Cached, kMost>(p, blocks_at_once);
              break;
            case 1:
              run_mma<Cached, kMost - 1>(p, blocks_at_once);
              break;
            default:
              run_mma<Cached, 1>(p, blocks_at_once);
          }
        } catch (const emu::KernelError& error) {
          std::fprintf(stderr, "%s\n", error.what());
          return 2;
        }
        if (!agree(actual, expected)) {
          std::fprintf(stderr, "differs: %d bytes, order %d, %d blocks, window %d\n",
                       int(sizeof(Cached)), int(order), blocks_at_once, window);
          return 1;
        }
      }
    }
  }
  return 0;
}

}  // namespace

int main() {
  const int of_activations_type = compare<bf16>();
  return of_activations_type != 0 ? of_activations_type : compare<e4m3>();
}
