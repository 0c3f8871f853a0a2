// Holds decode attention in which sequences share partitions against the same without sharing, bit
// by bit, in the emulator, in each order of turns. Mutants of the kernels are compiled with this
// (test_sharing_mutants.py): exits with 0 if they agree, 1 if not, 2 if a kernel did what no GPU
// allows.
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "attention_problem.h"
#include "cuda/attention/merge.cuh"
#include "cuda/attention/mma.cuh"
#include "cuda/attention/shared.cuh"
#include "cuda/attention/shared_warpgroup.cuh"
#include "cuda/launch.h"

namespace {

using namespace quire;
using namespace quire::cuda;

struct Memory {
  std::vector<float> acc, max, sum;

  PartialResults reserve(int64_t columns, int head_size) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    acc.assign(size_t(columns) * head_size, nan);
    max.assign(size_t(columns), nan);
    sum.assign(size_t(columns), nan);
    return {acc.data(), max.data(), sum.data()};
  }
};

// Decoding with kColumnTiles tiles of columns, behind what a plan has shared.
template <int kHeadSize, int kColumnTiles>
void run_rest(const PagedAttentionParams& p, const SharedPlan& shared, WorkPlan& plan,
              const PartialResults& partials) {
  using Shape = MmaShape<bf16, kHeadSize, kColumnTiles, 2>;
  shared.begin_behind(plan);
  launch(attention_mma_kernel<bf16, bf16, kHeadSize, kColumnTiles, 2>, unsigned(plan.items.size()),
         kMmaThreads, Shape::kSharedBytes, nullptr, p, plan.items.data(), partials);
  launch(attention_merge_kernel<bf16, kHeadSize, Shape::kColumns>,
         merge_grid(kHeadSize, Shape::kColumns, unsigned(plan.merges.size())), kMmaThreads, 0,
         nullptr, p, plan.merges.data(), partials);
}

template <int kHeadSize, int kColumnTiles>
void run_apart(const PagedAttentionParams& p) {
  constexpr int kColumns = 8 * kColumnTiles;
  WorkPlan plan = plan_work(p, p.seq_lens, p.query_start_loc, {kColumns, 28, 1 << 20});
  Memory memory;
  run_rest<kHeadSize, kColumnTiles>(p, {}, plan,
                                    memory.reserve(plan.num_slots * kColumns, kHeadSize));
}

// Computes what sequences share by a kernel, then the rest. Returns the partitions that were
// shared.
template <int kHeadSize, int kColumnTiles, typename Shape, typename Kernel>
int64_t run_behind(Kernel kernel, const PagedAttentionParams& p, int blocks_at_once) {
  constexpr int kColumns = 8 * kColumnTiles;
  const SharedPlan shared = plan_shared(p, find_sharing(p, p.seq_lens, p.query_start_loc),
                                        {Shape::kColumns, blocks_at_once, 1 << 20}, 1);
  WorkLimits limits{kColumns, blocks_at_once, 1 << 20};
  const int64_t before = shared.num_slots * Shape::kColumns;
  limits.first_slot = (before + kColumns - 1) / kColumns;
  WorkPlan plan = plan_work(p, p.seq_lens, p.query_start_loc, limits, shared.num_shared);
  Memory memory;
  const PartialResults partials = memory.reserve(plan.num_slots * kColumns, kHeadSize);
  launch(kernel, unsigned(shared.items.size()), Shape::kThreads, Shape::kSharedBytes, nullptr, p,
         shared.items.data(), shared.members.data(), partials);
  run_rest<kHeadSize, kColumnTiles>(p, shared, plan, partials);
  int64_t partitions = 0;
  for (const int32_t each : shared.num_shared) partitions += each;
  return partitions;
}

template <int kHeadSize, int kWarps, int kTiles, int kColumnTiles>
int64_t run_shared(const PagedAttentionParams& p, int blocks_at_once) {
  return run_behind<kHeadSize, kColumnTiles, PromptShape<bf16, kHeadSize, kWarps, kTiles>>(
      attention_shared_kernel<bf16, kHeadSize, kWarps, kTiles>, p, blocks_at_once);
}

template <int kHeadSize, int kColumnTiles>
int64_t run_warpgroups(const PagedAttentionParams& p, int blocks_at_once) {
  return run_behind<kHeadSize, kColumnTiles, WarpgroupPromptShape<bf16, kHeadSize>>(
      warpgroup_shared_kernel<bf16, kHeadSize>, p, blocks_at_once);
}

// Few blocks at once leave what is shared whole, more cut it into pairs of partitions, many into
// single ones.
constexpr int kBlocksAtOnce[] = {2, 9, 101};
constexpr emu::Order kOrders[] = {emu::Order::kForward, emu::Order::kReverse,
                                  emu::Order::kShuffled};

// Sequences that begin as others do, among some that do not.
template <int kHeadSize>
class Sharing {
 public:
  static constexpr int kNumAlike = 23;  // more than a block of 64 columns takes of 3 each
  static constexpr int64_t kShared = kNumAlike + 4 * 3 + 4 * 2;

  Sharing() : problem_(lengths(), starts()) {
    int next = 0;
    next = begin_alike(next, kNumAlike, 530);  // one partition, and some tokens of the next
    next = begin_alike(next, 4, 1700);         // three
    begin_alike(next, 4, 1025);                // two; one of these sequences ends in the third
    // A prompt, one that is too short and one whose first block is its own begin as the first.
    begin_as(kRest, 0, 510);
    begin_as(kRest + 1, 0, 300);
    begin_as(kRest + 2, 0, 510);
    std::swap(problem_.block_tables[table(kRest + 2)],
              problem_.block_tables[table(kRest + 2) + 40]);
  }

  Problem<bf16, kHeadSize>& problem() { return problem_; }

 private:
  static constexpr int kRest = kNumAlike + 8;

  static std::vector<int32_t> lengths() {
    std::vector<int32_t> lengths;
    for (int i = 0; i < kNumAlike; ++i) lengths.push_back(531 + i * 37 % 60);
    for (const int each : {1701, 2300, 1750, 1702}) lengths.push_back(each);
    for (const int each : {1030, 1026, 1040, 1600}) lengths.push_back(each);
    for (const int each : {700, 300, 700, 513, 40}) lengths.push_back(each);
    return lengths;
  }

  static std::vector<int32_t> starts() {
    std::vector<int32_t> starts;
    const int count = static_cast<int>(lengths().size());
    for (int i = 0; i <= count; ++i) starts.push_back(i <= kRest ? i : i + 2);
    return starts;
  }

  size_t table(int seq) const { return size_t(seq) * problem_.table_width; }

  void begin_as(int seq, int first, int tokens) {
    auto* tables = problem_.block_tables.data();
    std::copy_n(tables + table(first), tokens / kBlockSize, tables + table(seq));
  }

  int begin_alike(int first, int count, int tokens) {
    for (int seq = first + 1; seq < first + count; ++seq) begin_as(seq, first, tokens);
    return first + count;
  }

  Problem<bf16, kHeadSize> problem_;
};

template <int kHeadSize, int kColumnTiles, typename... Runs>
int compare(Runs... runs) {
  Sharing<kHeadSize> sharing;
  auto& problem = sharing.problem();
  const bf16 nan = from_float<bf16>(std::numeric_limits<float>::quiet_NaN());
  int turn = 0;
  for (const bool has_extras : {false, true}) {
    std::vector<bf16> expected(problem.query.size(), nan);
    PagedAttentionParams p = problem.params(expected);
    if (has_extras) {
      p.alibi_slopes = problem.alibi_slopes.data();
      p.sinks = problem.sinks.data();
      p.soft_cap = 3.f;
    }
    emu::Machine::order = emu::Order::kForward;
    run_apart<kHeadSize, kColumnTiles>(p);
    for (const auto run : {runs...}) {
      const int blocks_at_once = kBlocksAtOnce[turn % 3];
      emu::Machine::order = kOrders[turn++ % 3];
      std::vector<bf16> actual(problem.query.size(), nan);
      p.out.data = actual.data();
      int64_t shared = 0;
      try {
        shared = run(p, blocks_at_once);
      } catch (const emu::KernelError& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 2;
      }
      if (shared != Sharing<kHeadSize>::kShared) {
        std::fprintf(stderr, "%d partitions of sequences are shared\n", int(shared));
        return 1;
      }
      if (std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(bf16)) != 0) {
        std::fprintf(stderr, "differs: heads of %d, turn %d, %d blocks\n", kHeadSize, turn - 1,
                     blocks_at_once);
        return 1;
      }
    }
  }
  return 0;
}

}  // namespace

int main() {
  const int of_64 = compare<64, 1>(run_shared<64, 8, 4, 1>, run_shared<64, 8, 4, 1>,
                                   run_shared<64, 8, 4, 1>, run_warpgroups<64, 1>);
  if (of_64 != 0) return of_64;
  return compare<128, 2>(run_shared<128, 8, 4, 2>, run_shared<128, 8, 2, 2>,
                         run_shared<128, 4, 2, 2>, run_warpgroups<128, 2>, run_warpgroups<128, 2>,
                         run_warpgroups<128, 2>);
}
