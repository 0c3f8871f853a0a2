// Plays captured graphs over plans of attention of mixed steps: a kind of launches keeps the sizes
// and addresses of its first step, and must find there all the work of each later one. Mutants of
// the plan are compiled with this (test_fixed_plan_mutants.py): exits with 0 if it does, 1 if not.
#include <cstdio>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>
#include <tuple>
#include <vector>

#define ceil_div ceil_div_of_plan
#include "cuda/attention/plan.cu"
#undef ceil_div
#include "cuda/attention/device_plan.cu"

namespace quire::cuda {

// A device of few multiprocessors.
int attention_mma_blocks(const PagedAttentionParams&, int) {
  return 24;
}
int attention_prompt_blocks(const PagedAttentionParams&) {
  return 10;
}
int attention_prompt_columns(const PagedAttentionParams&) {
  return 128;
}
bool attention_prompt_serves(const PagedAttentionParams& p) {
  return p.head_size == 64;
}
bool attention_latent_serves(const PagedAttentionParams& p) {
  return p.head_size == 576;
}
int attention_latent_blocks(const PagedAttentionParams&, int columns) {
  return columns == kLatentFew ? 24 : 10;
}

}  // namespace quire::cuda

namespace {

using namespace quire;
using namespace quire::cuda;

constexpr int64_t kMostRows = 192;
constexpr int64_t kMostSeqs = 160;
constexpr int64_t kMaxSeqLen = 6000;
constexpr int64_t kBlockSize = 16;

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

struct Step {
  std::vector<int32_t> seq_lens, starts{0}, tables;
  std::vector<int64_t> table_rows;

  // Of decoding sequences, or of others beside them.
  Step(std::mt19937& random, bool is_mixed) {
    const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % uint64_t(end)); };
    const int64_t num_long = below(3) == 0 ? kMostSeqs : below(9);
    const int64_t most_rows = is_mixed && below(3) != 0 ? 1 + below(150) : 1;
    const bool shares = below(2) == 0;
    // As many tiles as there can be: all sequences decode, and so many have a draft as there is
    // room for.
    const bool is_crowded = is_mixed && below(12) == 0;
    int64_t left = kMostRows - below(kMostRows);
    const int64_t width = kMaxSeqLen / kBlockSize;
    for (int64_t seq = 0; seq < kMostSeqs; ++seq) {
      // Most decode, others are drafts or prompts; those that are not there have no rows.
      const int64_t kinds[] = {1, 1, 1, 1, 1 + below(std::min<int64_t>(most_rows, 12)), most_rows};
      const int64_t rows = is_crowded
                               ? 1 + (seq < kMostRows - kMostSeqs)
                               : std::min(left, is_mixed && below(8) == 0 ? 0 : kinds[below(6)]);
      left -= rows;
      starts.push_back(static_cast<int32_t>(starts.back() + rows));
      const int64_t longest = below(kMostSeqs) < num_long ? kMaxSeqLen : 600;
      const int64_t behind = below(3) == 0 ? 0 : below(longest - rows);
      seq_lens.push_back(static_cast<int32_t>(rows == 0 ? 0 : rows + behind));
      table_rows.push_back(seq);
      for (int64_t block = 0; block < width; ++block) {
        tables.push_back(static_cast<int32_t>(shares ? block : seq * width + block));
      }
    }
  }

  PagedAttentionParams params(int64_t head_size, int64_t group, int64_t window) const {
    PagedAttentionParams p{};
    p.num_kv_heads = 2;
    p.num_heads = 2 * group;
    p.head_size = head_size;
    p.value_size = head_size == 576 ? 512 : head_size;
    p.block_size = kBlockSize;
    p.sliding_window = window;
    p.num_tokens = kMostRows;
    p.num_seqs = kMostSeqs;
    p.max_query_len = kMostRows;
    p.block_tables = tables.data();
    p.block_table_stride = kMaxSeqLen / kBlockSize;
    p.table_rows = table_rows.data();
    return p;
  }
};

// What the launches of a kind have kept.
struct Captured {
  SharedWork shared;
  DeviceWork few, many;
};

bool are_same(const DeviceWork& a, const DeviceWork& b) {
  return a.num_items == b.num_items && a.num_merges == b.num_merges &&
         (a.num_items == 0 || (a.columns == b.columns && a.items == b.items &&
                               a.merges == b.merges && a.partials.acc == b.partials.acc));
}

// How often each partition is computed for a column, and by what the results are found.
class Coverage {
 public:
  Coverage(const PagedAttentionParams& p, const Step& step) : p_(p), step_(step) {}

  void add_shared(const SharedWork& work) {
    for (unsigned i = 0; i < work.num_items; ++i) {
      const SharedItem& item = work.items[i];
      if (ends(item.seq, i, work.num_items)) return;
      for (int member = 0; member < item.num_members; ++member) {
        const int32_t seq = work.members[item.first_member + member];
        add(seq, item.kv_head, 0, group(), item);
      }
    }
    is_over_ = false;
  }

  void add_work(const DeviceWork& work) {
    // Of each tile: the slots that its blocks write.
    std::map<std::tuple<int, int, int>, std::map<int, int>> slots;
    is_over_ = false;
    for (unsigned i = 0; i < work.num_items; ++i) {
      const AttentionItem& item = work.items[i];
      require(i > 0 || item.seq != kNoWork, "a launch has no work");
      if (ends(item.seq, i, work.num_items)) continue;
      const int64_t columns = rows_of(item.seq) * group();
      add(item.seq, item.kv_head, item.column,
          std::min<int64_t>(work.columns, columns - item.column), item);
      auto& of_tile = slots[{item.seq, item.kv_head, item.column}];
      const int count = item.is_prefix != 0 ? 1 : item.partition_end - item.partition_begin;
      for (int j = 0; item.slot >= 0 && j < count; ++j) ++of_tile[item.slot + j];
    }
    is_over_ = false;
    for (unsigned i = 0; i < work.num_merges && work.num_items > 0; ++i) {
      const AttentionMerge& merge = work.merges[i];
      if (ends(merge.seq, i, work.num_merges)) continue;
      auto& of_tile = slots[{merge.seq, merge.kv_head, merge.column}];
      for (int j = 0; j < merge.num_slots; ++j) {
        require(of_tile[merge.slot + j]-- == 1, "a slot is merged that no block has written");
        require((int64_t{merge.slot} + j + 1) * work.columns <=
                    PartialMemory::max_columns(p_.value_size),
                "a slot is beyond the memory");
      }
    }
    for (const auto& [tile, of_tile] : slots) {
      for (const auto& [slot, left] : of_tile) require(left == 0, "a slot is not merged");
    }
  }

  void check() const {
    for (int32_t seq = 0; seq < p_.num_seqs; ++seq) {
      for (int64_t column = 0; column < rows_of(seq) * group(); ++column) {
        const int64_t position = step_.seq_lens[seq] - rows_of(seq) + column / group();
        const int64_t first = std::max<int64_t>(position + 1 - p_.sliding_window, 0);
        for (int head = 0; head < p_.num_kv_heads; ++head) {
          for (int64_t i = first / kPartitionTokens; i <= position / kPartitionTokens; ++i) {
            const auto found = computed_.find({seq, head, column, i});
            require(found != computed_.end(), "a partition is not computed");
            require(found->second == 1, "a partition is computed twice");
          }
        }
      }
    }
  }

 private:
  int64_t group() const { return p_.num_heads / p_.num_kv_heads; }
  int64_t rows_of(int32_t seq) const { return step_.starts[seq + 1] - step_.starts[seq]; }

  // Whether a block has no work: then those behind it have none.
  bool ends(int32_t seq, unsigned index, unsigned count) {
    require(index < count && seq >= kNoWork && seq < p_.num_seqs, "a block has no sequence");
    require(!is_over_ || seq == kNoWork, "a block with work comes behind one without");
    is_over_ = seq == kNoWork;
    return is_over_;
  }

  void add(int32_t seq, int head, int64_t column, int64_t count, const AttentionItem& item) {
    for (int64_t i = column; i < column + count; ++i) {
      for (int64_t j = item.partition_begin; j < item.partition_end; ++j) {
        ++computed_[{seq, head, i, j}];
      }
    }
  }

  const PagedAttentionParams& p_;
  const Step& step_;
  bool is_over_ = false;
  std::map<std::tuple<int, int, int64_t, int64_t>, int> computed_;
};

// Plans one step after the other in one memory; returns how many were of a kind that was known.
int serve(int64_t head_size, int64_t group, int64_t window, int num_steps, bool is_mixed = true) {
  std::mt19937 random(7);
  DevicePlan plan;
  std::map<std::vector<int64_t>, Captured> kinds;
  int num_known = 0;
  for (int i = 0; i < num_steps; ++i) {
    const Step step(random, is_mixed);
    PagedAttentionParams p = step.params(head_size, group, window);
    if (!is_mixed) p.max_query_len = 1;
    plan.make_fixed(p, step.seq_lens.data(), step.starts.data(), kMaxSeqLen, nullptr);
    const auto [kind, is_new] =
        kinds.insert({plan.launches(), {plan.shared(), plan.few(), plan.many()}});
    const Captured& captured = kind->second;
    num_known += is_new ? 0 : 1;
    require(are_same(captured.few, plan.few()), "the launch of few columns is another");
    require(are_same(captured.many, plan.many()), "the launch of prompts is another");
    require(
        captured.shared.num_items == plan.shared().num_items &&
            (plan.shared().num_items == 0 || (captured.shared.items == plan.shared().items &&
                                              captured.shared.members == plan.shared().members)),
        "the launch of what is shared is another");
    Coverage coverage(p, step);
    coverage.add_shared(captured.shared);
    coverage.add_work(captured.few);
    coverage.add_work(captured.many);
    coverage.check();
  }
  return num_known;
}

// A plan that may have been made before must not be made for what a change does to a step.
template <typename Change>
void require_refused(bool is_made, const Change& change) {
  std::mt19937 random(7);
  Step step(random, true);
  PagedAttentionParams p = step.params(64, 4, kMaxSeqLen);
  DevicePlan plan;
  const auto make = [&] {
    plan.make_fixed(p, step.seq_lens.data(), step.starts.data(), kMaxSeqLen, nullptr);
  };
  if (is_made) make();
  change(p, step);
  try {
    make();
  } catch (const std::invalid_argument&) {
    return;
  }
  require(false, "what does not fit is not refused");
}

}  // namespace

int main() {
  constexpr int64_t kNoWindow = std::numeric_limits<int64_t>::max();
  try {
    const int num_known = serve(64, 4, kNoWindow, 100) + serve(64, 2, 600, 40) +
                          serve(80, 4, kNoWindow, 40) + serve(64, 12, kNoWindow, 40) +
                          serve(64, 8, kNoWindow, 20, false) + serve(576, 16, kNoWindow, 30) +
                          serve(576, 32, kNoWindow, 20, false);
    require(num_known > 150, "too many kinds of launches");
    require_refused(true, [](PagedAttentionParams& p, Step&) { p.num_tokens *= 2; });
    require_refused(false, [](PagedAttentionParams& p, Step&) { p.max_query_len = 1; });
    require_refused(false,
                    [](PagedAttentionParams&, Step& step) { step.seq_lens[0] = kMaxSeqLen + 1; });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
