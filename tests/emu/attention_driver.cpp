// Holds the attention kernel on tensor cores against the plain one, in the emulator, in each order
// of turns. Mutants of the kernel are compiled with this (test_mutants.py): exits with 0 if they
// agree, 1 if not, 2 if the kernel did what no GPU allows.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "cuda/attention/mma.cuh"
#include "cuda/launch.h"

namespace {

using namespace quire;
using namespace quire::cuda;

constexpr int kHeadSize = 64;
constexpr int kBlockSize = 16;
constexpr int kKvHeads = 2;
constexpr int kGroup = 3;
constexpr int kHeads = kKvHeads * kGroup;
constexpr int kColumnTiles = 1;

bf16 to_cached(float x, bf16*) {
  return from_float<bf16>(x);
}
e4m3 to_cached(float x, e4m3*) {
  return nearest_e4m3(x);
}

// Sequences over a shuffled cache whose other slots hold NaN.
template <typename Cached>
struct Problem {
  std::vector<int32_t> seq_lens{1, 700, 46, 1700, 33};
  std::vector<int32_t> query_start_loc{0, 1, 2, 22, 23, 56};
  std::vector<int32_t> block_tables;
  std::vector<bf16> query;
  std::vector<Cached> keys, values;
  std::vector<float> alibi_slopes;
  std::vector<float> key_scales{0.5f, 0.7f};
  std::vector<float> value_scales{3.f, 0.3f};
  int64_t table_width = 0;

  Problem() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    int num_blocks = 2;
    for (const int length : seq_lens) {
      const int blocks = (length + kBlockSize - 1) / kBlockSize;
      table_width = std::max<int64_t>(table_width, blocks);
      num_blocks += blocks;
    }
    std::vector<int32_t> order(num_blocks);
    for (int i = 0; i < num_blocks; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    // Block 0, where a wrong address of zero leads, holds nothing.
    std::iter_swap(order.end() - 1, std::find(order.begin(), order.end(), 0));
    const Cached nan = cached(std::numeric_limits<float>::quiet_NaN());
    keys.assign(size_t(num_blocks) * kKvHeads * kBlockSize * kHeadSize, nan);
    values = keys;
    block_tables.assign(seq_lens.size() * table_width, 1 << 28);
    auto next = order.begin();
    for (size_t seq = 0; seq < seq_lens.size(); ++seq) {
      for (int token = 0; token < seq_lens[seq]; ++token) {
        int32_t& block = block_tables[seq * table_width + token / kBlockSize];
        if (token % kBlockSize == 0) block = *next++;
        for (int head = 0; head < kKvHeads; ++head) {
          const size_t at =
              ((size_t(block) * kKvHeads + head) * kBlockSize + token % kBlockSize) * kHeadSize;
          for (int d = 0; d < kHeadSize; ++d) {
            keys[at + d] = cached(2 * normal(random));
            values[at + d] = cached(normal(random));
          }
        }
      }
    }
    query.resize(size_t(query_start_loc.back()) * kHeads * kHeadSize);
    // Rows of very different sizes.
    for (size_t i = 0; i < query.size(); ++i) {
      const float size = i / kHeadSize % 5 == 0 ? 20.f : 1.f;
      query[i] = from_float<bf16>(size * normal(random));
    }
    for (int head = 0; head < kHeads; ++head) alibi_slopes.push_back(0.01f * head);
  }

  static Cached cached(float x) { return to_cached(x, static_cast<Cached*>(nullptr)); }

  PagedAttentionParams params(std::vector<bf16>& out) {
    PagedAttentionParams p{};
    p.out = {out.data(), kHeads * kHeadSize, kHeadSize};
    p.query = {query.data(), kHeads * kHeadSize, kHeadSize};
    const int64_t head_stride = kBlockSize * kHeadSize;
    p.key_cache = {keys.data(), kKvHeads * head_stride, head_stride, kHeadSize};
    p.value_cache = {values.data(), kKvHeads * head_stride, head_stride, kHeadSize};
    p.block_tables = block_tables.data();
    p.seq_lens = seq_lens.data();
    p.query_start_loc = query_start_loc.data();
    p.block_table_stride = table_width;
    p.num_tokens = query_start_loc.back();
    p.num_seqs = static_cast<int64_t>(seq_lens.size());
    p.num_heads = kHeads;
    p.num_kv_heads = kKvHeads;
    p.head_size = kHeadSize;
    p.block_size = kBlockSize;
    p.sliding_window = std::numeric_limits<int64_t>::max();
    p.scale = 0.125f;
    p.dtype = DType::kBFloat16;
    p.cache_dtype = DType::kBFloat16;
    if (sizeof(Cached) == 1) {
      p.cache_dtype = DType::kFloat8E4M3;
      p.key_scales = key_scales.data();
      p.value_scales = value_scales.data();
    }
    return p;
  }
};

template <typename Cached, int kStages>
void run_mma(const PagedAttentionParams& p, int blocks_at_once) {
  using Shape = MmaShape<Cached, kHeadSize, kColumnTiles, kStages>;
  const WorkPlan plan =
      plan_work(p, p.seq_lens, p.query_start_loc, {Shape::kColumns, blocks_at_once, 1 << 20});
  const size_t rows = size_t(plan.num_slots) * Shape::kColumns;
  std::vector<float> acc(rows * kHeadSize), max(rows), sum(rows);
  const PartialResults partials{acc.data(), max.data(), sum.data()};
  launch(attention_mma_kernel<bf16, Cached, kHeadSize, kColumnTiles, kStages>,
         unsigned(plan.items.size()), kMmaThreads, Shape::kSharedBytes, nullptr, p,
         plan.items.data(), partials);
  launch(attention_merge_kernel<bf16, kHeadSize, Shape::kColumns>,
         dim3(unsigned(plan.merges.size()), Shape::kColumns), kMmaThreads, 0, nullptr, p,
         plan.merges.data(), partials);
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
  Problem<Cached> problem;
  const bf16 nan = from_float<bf16>(std::numeric_limits<float>::quiet_NaN());
  for (const int window : {0, 45, 530}) {
    std::vector<bf16> expected(problem.query.size(), nan);
    PagedAttentionParams p = problem.params(expected);
    if (window > 0) {
      p.sliding_window = window;
      p.alibi_slopes = problem.alibi_slopes.data();
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
