// Sequences to attend to, for drivers of the attention kernels: decoding, chunks and prompts in one
// step, over a shuffled cache whose other slots hold NaN.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "cuda/attention/common.h"
#include "cuda/attention/plan.h"

namespace quire::cuda {

constexpr int kBlockSize = 16;
constexpr int kKvHeads = 2;
constexpr int kGroup = 3;
constexpr int kHeads = kKvHeads * kGroup;

inline bf16 to_cached(float x, bf16*) {
  return from_float<bf16>(x);
}
inline e4m3 to_cached(float x, e4m3*) {
  return nearest_e4m3(x);
}

template <typename Cached, int kHeadSize>
struct Problem {
  std::vector<int32_t> seq_lens;
  std::vector<int32_t> query_start_loc;
  std::vector<int32_t> block_tables;
  std::vector<bf16> query;
  std::vector<Cached> keys, values;
  std::vector<float> alibi_slopes;
  std::vector<float> sinks;
  std::vector<float> key_scales{0.5f, 0.7f};
  std::vector<float> value_scales{3.f, 0.3f};
  int64_t table_width = 0;

  explicit Problem(std::vector<int32_t> lens = {1, 700, 46, 2100, 33},
                   std::vector<int32_t> start_loc = {0, 1, 2, 22, 23, 56})
      : seq_lens(std::move(lens)), query_start_loc(std::move(start_loc)) {
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
    for (int head = 0; head < kHeads; ++head) {
      alibi_slopes.push_back(0.01f * head);
      sinks.push_back(2.f + head);  // among the logits, and above them
    }
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
    p.head_size = p.value_size = kHeadSize;
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

// The plan of a step, with blocks that find no work, as in a launch of a captured graph.
inline WorkPlan plan_with_idle_blocks(const PagedAttentionParams& p, int columns,
                                      int blocks_at_once) {
  WorkPlan plan = plan_work(p, p.seq_lens, p.query_start_loc, {columns, blocks_at_once, 1 << 20});
  plan.items.insert(plan.items.end(), 2, AttentionItem{kNoWork, 0, 0, 0, 1, 0, 0, 0, 0, 0});
  plan.merges.insert(plan.merges.end(), 2, AttentionMerge{kNoWork, 0, 0, 0, 0});
  plan.num_slots = std::max<int64_t>(plan.num_slots, 1);
  return plan;
}

}  // namespace quire::cuda
