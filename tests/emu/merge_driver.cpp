// Holds the merge of attention's partial results to the bits of one that takes slot after slot, in
// the emulator, in each order of turns. Mutants of the kernel are compiled with this
// (test_merge_mutants.py): exits with 0 if they agree, 1 if not, 2 if the kernel did what no GPU
// allows.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cuda/attention/merge.cuh"
#include "cuda/launch.h"

namespace {

using namespace quire;
using namespace quire::cuda;

constexpr int kGroup = 3;
constexpr int kKvHeads = 2;
constexpr int kHeads = kGroup * kKvHeads;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Merges of sequences with `num_rows` each, of so many slots: less and more than a batch, those
// that are copied ahead, and those that factors are made for at once.
struct Problem {
  std::vector<int32_t> num_slots{1, 2, 7, 8, 9, 16, 17, 48, 49, 65, 127, 128, 129, 300};
  std::vector<int32_t> num_rows{4, 1, 3};
  std::vector<int32_t> query_start_loc{-1, 0};  // behind a row of no sequence
  std::vector<int32_t> seq_lens;
  std::vector<AttentionMerge> merges;
  std::vector<float> acc, max, sum;
  std::vector<float> sinks, value_scales;
  int head_size;
  int columns;

  Problem(int head_size_of_all, int columns_of_all)
      : head_size(head_size_of_all), columns(columns_of_all) {
    for (size_t seq = 0; seq < num_slots.size(); ++seq) {
      query_start_loc.push_back(query_start_loc.back() + num_rows[seq % num_rows.size()]);
      seq_lens.push_back(512 * num_slots[seq]);
    }
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    int32_t slot = 1;
    for (size_t seq = 0; seq < num_slots.size(); ++seq) {
      const int num_columns = num_rows[seq % num_rows.size()] * kGroup;
      const auto kv_head = static_cast<int32_t>(seq % kKvHeads);
      for (int column = 0; column < num_columns; column += columns) {
        merges.push_back({static_cast<int32_t>(seq), kv_head, column, slot, num_slots[seq]});
        slot += num_slots[seq] + 1;  // and one that no merge has
      }
      if (seq % 5 == 2) merges.push_back({kNoWork, 0, 0, 1, 1});
    }
    // Rows and slots that no merge has are NaN, so that a result that reads them is.
    const size_t rows = size_t(slot) * columns;
    acc.assign(rows * head_size, kNan);
    max.assign(rows, kNan);
    sum.assign(rows, kNan);
    for (const AttentionMerge& each : merges) {
      if (each.seq == kNoWork) continue;
      const int left = num_rows[each.seq % num_rows.size()] * kGroup - each.column;
      for (int i = 0; i < each.num_slots; ++i) {
        for (int column = 0; column < std::min(columns, left); ++column) {
          const size_t row = size_t(each.slot + i) * columns + column;
          const bool is_unseen = random() % 8 == 0;
          max[row] = is_unseen ? kUnseen : 4 * normal(random) + 0.02f * float(i);
          sum[row] = is_unseen ? 0.f : std::abs(normal(random)) + 1.f;
          // Scores may overflow, and hide all that came before.
          if (each.seq == 3 && column == 1 && i == 5) max[row] = kInf;
          for (int d = 0; d < head_size; ++d) {
            const float value = normal(random);
            float& own = acc[row * head_size + d];
            own = d % 16 == 3 ? std::copysign(0.f, value) : value;
            if (d == 5) own = -0.f;
            if (is_unseen) own = std::copysign(0.f, value);
          }
        }
      }
    }
    for (int head = 0; head < kHeads; ++head) sinks.push_back(2.f + float(head));
    for (int head = 0; head < kKvHeads; ++head) value_scales.push_back(0.75f + float(head));
  }

  PagedAttentionParams params(std::vector<float>& out, bool has_sinks) {
    PagedAttentionParams p{};
    const int64_t row = int64_t{kHeads} * head_size;
    p.out = {out.data() + row, row, head_size};
    p.seq_lens = seq_lens.data();
    p.query_start_loc = query_start_loc.data() + 1;
    p.num_tokens = query_start_loc.back();
    p.num_seqs = static_cast<int64_t>(seq_lens.size());
    p.num_heads = kHeads;
    p.num_kv_heads = kKvHeads;
    p.head_size = p.value_size = head_size;
    p.sliding_window = std::numeric_limits<int64_t>::max();
    p.dtype = DType::kFloat32;
    p.sinks = has_sinks ? sinks.data() : nullptr;
    p.value_scales = has_sinks ? value_scales.data() : nullptr;
    return p;
  }

  // As docs/numerics.md has it: slots in order, a sink last.
  void merge_in_order(const PagedAttentionParams& p) const {
    for (const AttentionMerge& each : merges) {
      if (each.seq == kNoWork) continue;
      const int left = num_rows[each.seq % num_rows.size()] * kGroup - each.column;
      for (int column = 0; column < std::min(columns, left); ++column) {
        const int row = p.query_start_loc[each.seq] + (each.column + column) / kGroup;
        const int head = each.kv_head * kGroup + (each.column + column) % kGroup;
        float* out =
            static_cast<float*>(p.out.data) + row * p.out.token_stride + head * p.out.head_stride;
        for (int d = 0; d < head_size; ++d) {
          const size_t first = size_t(each.slot) * columns + column;
          ColumnState total{max[first], sum[first]};
          float value = acc[first * head_size + d];
          for (int i = 1; i < each.num_slots; ++i) {
            const size_t own = first + size_t(i) * columns;
            const MergeFactors factors = total.merge(max[own], sum[own]);
            value = merge_values(value, acc[own * head_size + d], factors);
          }
          const float factor = total.add_sink(p, head);
          const float scale = p.value_scales == nullptr ? 1.f : p.value_scales[each.kv_head];
          out[d] = value * factor / total.sum * scale;
        }
      }
    }
  }
};

bool are_same(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    const bool are_nan = std::isnan(a[i]) && std::isnan(b[i]);
    if (!are_nan && std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return false;
  }
  return true;
}

template <int kHeadSize, int kColumns>
int compare() {
  Problem problem(kHeadSize, kColumns);
  const size_t size = size_t(problem.query_start_loc.back() + 1) * kHeads * kHeadSize;
  for (const bool has_sinks : {false, true}) {
    std::vector<float> expected(size, 7.f);
    problem.merge_in_order(problem.params(expected, has_sinks));
    for (const auto order : {emu::Order::kForward, emu::Order::kReverse, emu::Order::kShuffled}) {
      emu::Machine::order = order;
      std::vector<float> actual(size, 7.f);
      try {
        launch(attention_merge_kernel<float, kHeadSize, kColumns>,
               merge_grid(kHeadSize, kColumns, unsigned(problem.merges.size())), kMmaThreads, 0,
               nullptr, problem.params(actual, has_sinks), problem.merges.data(),
               PartialResults{problem.acc.data(), problem.max.data(), problem.sum.data()});
      } catch (const emu::KernelError& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 2;
      }
      if (!are_same(actual, expected)) {
        std::fprintf(stderr, "differs: heads of %d, %d columns, order %d\n", kHeadSize, kColumns,
                     int(order));
        return 1;
      }
    }
  }
  return 0;
}

}  // namespace

int main() {
  for (const auto each :
       {compare<64, 8>, compare<80, 8>, compare<128, 16>, compare<192, 8>, compare<512, 16>}) {
    if (const int result = each()) return result;
  }
  return 0;
}
