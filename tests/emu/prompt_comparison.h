// Runs kernels of prompts in the emulator, in each order of turns, and holds what they give against
// the kernel of decoding, bit by bit: results, and the float32 states of single partitions.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <map>
#include <vector>

#include "attention_problem.h"
#include "cuda/attention/merge.cuh"
#include "cuda/attention/mma.cuh"
#include "cuda/launch.h"

namespace quire::cuda {

// What blocks have left for the merge, by sequence, kv head, column and slot: the largest logit,
// the sum, and weighted values.
using Partials = std::map<std::array<int, 4>, std::vector<float>>;

// Starts a kernel and the merge over the plan of a step.
template <int kHeadSize, int kColumns, typename Kernel>
Partials run(Kernel kernel, int threads, int shared_bytes, const PagedAttentionParams& p,
             int blocks_at_once) {
  const WorkPlan plan = plan_with_idle_blocks(p, kColumns, blocks_at_once);
  const size_t rows = size_t(plan.num_slots) * kColumns;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> acc(rows * kHeadSize, nan), max(rows, nan), sum(rows, nan);
  const PartialResults partials{acc.data(), max.data(), sum.data()};
  launch(kernel, unsigned(plan.items.size()), unsigned(threads), size_t(shared_bytes), nullptr, p,
         plan.items.data(), partials);
  launch(attention_merge_kernel<bf16, kHeadSize, kColumns>,
         merge_grid(kHeadSize, kColumns, unsigned(plan.merges.size())), kMmaThreads, 0, nullptr, p,
         plan.merges.data(), partials);
  Partials found;
  for (const AttentionMerge& merge : plan.merges) {
    if (merge.seq == kNoWork) continue;
    const int num_rows = p.query_start_loc[merge.seq + 1] - p.query_start_loc[merge.seq];
    const int count = std::min(kColumns, num_rows * kGroup - merge.column);
    for (int slot = 0; slot < merge.num_slots; ++slot) {
      for (int column = 0; column < count; ++column) {
        const size_t row = size_t(merge.slot + slot) * kColumns + column;
        auto& each = found[{merge.seq, merge.kv_head, merge.column + column, slot}];
        each = {max[row], sum[row]};
        each.insert(each.end(), &acc[row * kHeadSize], &acc[row * kHeadSize] + kHeadSize);
      }
    }
  }
  return found;
}

// Whether all have the same bits.
inline bool are_same(const Partials& a, const Partials& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    return one.first == other.first && one.second.size() == other.second.size() &&
           std::memcmp(one.second.data(), other.second.data(), one.second.size() * sizeof(float)) ==
               0;
  });
}

template <int kHeadSize>
Partials run_decode(const PagedAttentionParams& p, int blocks_at_once) {
  using Shape = MmaShape<bf16, kHeadSize, 1, 2>;
  return run<kHeadSize, Shape::kColumns>(attention_mma_kernel<bf16, bf16, kHeadSize, 1, 2>,
                                         kMmaThreads, Shape::kSharedBytes, p, blocks_at_once);
}

// Few blocks at once leave sequences whole, more cut them into pairs of partitions, many into
// single ones.
constexpr int kMany = 1 << 20;
constexpr int kBlocksAtOnce[] = {3, 13, kMany};
constexpr emu::Order kOrders[] = {emu::Order::kForward, emu::Order::kReverse,
                                  emu::Order::kShuffled};

// What attention is asked for.
struct Options {
  int window;  // 0: none, and no sinks
  bool has_slopes;
  float soft_cap;  // 0: none
};

// Each shape that a device is given, with each way to cut the work, in one order or another.
template <int kHeadSize, typename... Runs>
int compare(std::initializer_list<Options> all_options, Runs... runs) {
  // The third has columns of two blocks, over four partitions.
  Problem<bf16, kHeadSize> problem({1, 46, 1700, 33, 600}, {0, 1, 21, 71, 104, 105});
  // Before the first a sequence that blocks without work would take if they did not end.
  std::vector<int32_t> seq_lens{40}, starts{-40}, tables(size_t(problem.table_width));
  tables.insert(tables.end(), problem.block_tables.begin(), problem.block_tables.end());
  seq_lens.insert(seq_lens.end(), problem.seq_lens.begin(), problem.seq_lens.end());
  starts.insert(starts.end(), problem.query_start_loc.begin(), problem.query_start_loc.end());
  const bf16 nan = from_float<bf16>(std::numeric_limits<float>::quiet_NaN());
  int turn = 0;
  for (const Options& options : all_options) {
    std::vector<bf16> expected(problem.query.size(), nan);
    PagedAttentionParams p = problem.params(expected);
    p.seq_lens = &seq_lens[1];
    p.query_start_loc = &starts[1];
    p.block_tables = &tables[size_t(problem.table_width)];
    if (options.window > 0) {
      p.sliding_window = options.window;
      p.sinks = problem.sinks.data();
    }
    if (options.has_slopes) p.alibi_slopes = problem.alibi_slopes.data();
    p.soft_cap = options.soft_cap;
    emu::Machine::order = emu::Order::kForward;
    run_decode<kHeadSize>(p, 28);
    std::vector<bf16> again(problem.query.size(), nan);
    p.out.data = again.data();
    const Partials expected_partials = run_decode<kHeadSize>(p, kMany);
    for (const auto run : {runs...}) {
      for (const int blocks_at_once : kBlocksAtOnce) {
        emu::Machine::order = kOrders[turn++ % 3];
        std::vector<bf16> actual(problem.query.size(), nan);
        p.out.data = actual.data();
        Partials partials;
        try {
          partials = run(p, blocks_at_once);
        } catch (const emu::KernelError& error) {
          std::fprintf(stderr, "%s\n", error.what());
          return 2;
        }
        const bool has_same_partials =
            blocks_at_once < kMany || are_same(partials, expected_partials);
        if (std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(bf16)) != 0 ||
            !has_same_partials) {
          std::fprintf(stderr, "differs: heads of %d, shape and order %d, %d blocks, window %d\n",
                       kHeadSize, turn - 1, blocks_at_once, options.window);
          return 1;
        }
      }
    }
    ++turn;  // another order for each shape
  }
  return 0;
}

}  // namespace quire::cuda
