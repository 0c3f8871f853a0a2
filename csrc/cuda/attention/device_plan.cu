#include <algorithm>

#include "core/check.h"
#include "cuda/attention/common.h"
#include "cuda/launch.h"

namespace quire::cuda {
namespace {

// Sequences with so many columns have a kernel of their own.
constexpr int64_t kManyColumns = 64;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t group_of(const PagedAttentionParams& p) {
  return p.num_heads / p.num_kv_heads;
}

WorkLimits limits_of_latent(const PagedAttentionParams& p, int columns) {
  return {columns, attention_latent_blocks(p, columns),
          PartialMemory::max_columns(p.value_size) / columns};
}

// One tile of columns for decode; two, if registers allow it, when the heads of a group do not fit
// one or there are rows to fill two.
WorkLimits limits_of_few(const PagedAttentionParams& p, bool is_wide) {
  if (attention_latent_serves(p)) return limits_of_latent(p, kLatentFew);
  const int columns = is_wide ? 16 : 8;
  return {columns, attention_mma_blocks(p, columns),
          PartialMemory::max_columns(p.value_size) / columns};
}

bool may_be_wide(const PagedAttentionParams& p) {
  return p.head_size <= 128 && !attention_latent_serves(p);
}

bool has_many(const PagedAttentionParams& p) {
  return attention_prompt_serves(p) || attention_latent_serves(p);
}

// Sequences with so many columns are those of limits_of_many.
int64_t least_of_many(const PagedAttentionParams& p) {
  return attention_latent_serves(p) ? kLatentMany : kManyColumns;
}

WorkLimits limits_of_many(const PagedAttentionParams& p) {
  if (attention_latent_serves(p)) {
    WorkLimits limits = limits_of_latent(p, kLatentMany);
    limits.from = least_of_many(p);
    return limits;
  }
  const int columns = attention_prompt_columns(p);
  return {columns, attention_prompt_blocks(p), PartialMemory::max_columns(p.value_size) / columns,
          kManyColumns};
}

// Leaves three quarters of the memory to what begins with the results.
WorkLimits limits_of_shared(const PagedAttentionParams& p) {
  WorkLimits limits = limits_of_many(p);
  limits.max_slots /= 4;
  return limits;
}

bool may_share(const PagedAttentionParams& p) {
  return attention_prompt_serves(p) && group_of(p) < kManyColumns;
}

// What sequences share of a step, if anything; sets where the slots of the rest begin.
SharedPlan share(const PagedAttentionParams& p, const int32_t* seq_lens,
                 const int32_t* query_start_loc, WorkLimits& rest) {
  if (!may_share(p)) return {};
  const WorkLimits limits = limits_of_shared(p);
  SharedPlan plan =
      plan_shared(p, find_sharing(p, seq_lens, query_start_loc), limits, rest.blocks_at_once);
  rest.first_slot = ceil_div(plan.num_slots * limits.columns, rest.columns);
  return plan;
}

// The limits of those sequences of a step that have fewer columns.
WorkLimits limits_of_rest(const PagedAttentionParams& p, const int32_t* query_start_loc,
                          int64_t until) {
  int64_t num_rows = 0;
  int64_t num_seqs = 0;
  for (int64_t seq = 0; seq < p.num_seqs; ++seq) {
    const int64_t rows = query_start_loc[seq + 1] - query_start_loc[seq];
    if (rows == 0 || rows * group_of(p) >= until) continue;
    num_rows += rows;
    ++num_seqs;
  }
  const int64_t group = group_of(p);
  const bool has_more = group > 8 || group * num_rows > 8 * num_seqs;
  WorkLimits limits = limits_of_few(p, has_more && may_be_wide(p));
  limits.until = until;
  return limits;
}

size_t bytes_of(const WorkBounds& each) {
  return Workspace::piece_bytes<AttentionItem>(each.num_items) +
         Workspace::piece_bytes<AttentionMerge>(each.num_merges);
}

size_t bytes_of_shared(const PagedAttentionParams& p, int64_t num_items) {
  return Workspace::piece_bytes<int32_t>(p.num_seqs) +
         Workspace::piece_bytes<SharedItem>(num_items);
}

int64_t most_shared_items(const PagedAttentionParams& p) {
  const WorkLimits limits = limits_of_shared(p);
  return size_of_launch(bound_shared(p, limits), limits.blocks_at_once);
}

}  // namespace

PartialResults PartialMemory::get(int64_t value_size) {
  const int64_t columns = max_columns(value_size);
  auto* acc = memory_.get<float>();
  float* max = acc + columns * value_size;
  return {acc, max, max + columns};
}

std::vector<int64_t> DevicePlan::launches() const {
  std::vector<int64_t> sizes{int64_t{shared().num_items}};
  for (const DeviceWork* each : {&few(), &many()}) {
    sizes.insert(sizes.end(), {each->columns, int64_t{each->num_items}, int64_t{each->num_merges}});
  }
  return sizes;
}

void DevicePlan::make(const PagedAttentionParams& p, const int32_t* seq_lens,
                      const int32_t* query_start_loc, cudaStream_t stream) {
  make_launches(p, seq_lens, query_start_loc, false, stream);
}

void DevicePlan::make_fixed(const PagedAttentionParams& p, const int32_t* seq_lens,
                            const int32_t* query_start_loc, int64_t max_seq_len,
                            cudaStream_t stream) {
  for (int64_t i = 0; i < p.num_seqs; ++i) {
    const std::string index = "[" + std::to_string(i) + "]";
    check_range("rows of sequence " + index, query_start_loc[i + 1] - query_start_loc[i], 0,
                p.max_query_len + 1);
    check_range("seq_lens" + index, seq_lens[i], 0, max_seq_len + 1);
  }
  make_launches(p, seq_lens, query_start_loc, true, stream);
}

void DevicePlan::make_launches(const PagedAttentionParams& p, const int32_t* seq_lens,
                               const int32_t* query_start_loc, bool is_fixed, cudaStream_t stream) {
  const bool is_decode = is_fixed && p.max_query_len == 1;
  // Then sequences have one row, and are few or many alike.
  const bool are_many = is_decode && attention_latent_serves(p) && group_of(p) >= least_of_many(p);
  const bool may_be_many = is_decode ? are_many : has_many(p);
  const int64_t until = may_be_many ? least_of_many(p) : INT64_MAX;
  PagedAttentionParams most_rows = p;
  if (!is_fixed) most_rows.max_query_len = p.num_tokens;
  if (may_be_many) many_.reserve(bound_work(most_rows, limits_of_many(p)), stream);
  for (const bool is_wide : {false, true}) {
    if (are_many || (is_wide && !may_be_wide(p))) continue;
    WorkLimits limits = limits_of_few(p, is_wide);
    limits.until = until;
    few_[limits.columns > 8].reserve(bound_work(most_rows, limits), stream);
  }
  if (may_share(p)) shared_.memory.begin(bytes_of_shared(p, most_shared_items(p)), stream);
  SharedPlan shared;
  const auto plan = [&](const WorkLimits& limits, Launch& launch) {
    WorkPlan work = plan_work(p, seq_lens, query_start_loc, limits, shared.num_shared);
    shared.begin_behind(work);
    WorkBounds size{static_cast<int64_t>(work.items.size()),
                    static_cast<int64_t>(work.merges.size())};
    WorkBounds most = size;
    if (is_fixed) {
      most = bound_work(p, limits);
      const int64_t earlier = launch.most_items;
      if (earlier != 0) check_range("launch", most.num_items, earlier, earlier + 1);
      launch.most_items = most.num_items;
      size = is_decode ? most : size_of_launch(work, most, limits.blocks_at_once);
    }
    launch.send(work, size, most, limits.columns, p, stream);
  };
  many_.work = {};
  if (may_be_many) plan(limits_of_many(p), many_);
  WorkLimits rest = limits_of_rest(p, query_start_loc, until);
  shared = share(p, seq_lens, query_start_loc, rest);
  const auto num_shared = static_cast<int64_t>(shared.items.size());
  if (is_fixed && num_shared != 0) {
    const int64_t size = size_of_launch(num_shared, limits_of_shared(p).blocks_at_once);
    shared_.send(shared, size, most_shared_items(p), p, stream);
  } else {
    shared_.send(shared, num_shared, num_shared, p, stream);
  }
  is_wide_ = rest.columns > 8;
  few_[is_wide_].work = {};
  if (!are_many) plan(rest, few_[is_wide_]);
}

void DevicePlan::Launch::reserve(const WorkBounds& most, cudaStream_t stream) {
  memory.begin(bytes_of(most), stream);
}

void DevicePlan::Launch::send(const WorkPlan& plan, const WorkBounds& size, const WorkBounds& most,
                              int columns, const PagedAttentionParams& p, cudaStream_t stream) {
  work.columns = columns;
  work.num_items = grid_size(size.num_items);
  work.num_merges = grid_size(size.num_merges);
  if (work.num_items == 0) return;
  const size_t items_bytes = Workspace::piece_bytes<AttentionItem>(size.num_items);
  const size_t bytes = bytes_of(size);
  char* host = buffer.begin(bytes_of(most));
  auto* items = reinterpret_cast<AttentionItem*>(host);
  auto* merges = reinterpret_cast<AttentionMerge*>(host + items_bytes);
  std::fill(std::copy(plan.items.begin(), plan.items.end(), items), items + size.num_items,
            AttentionItem{kNoWork, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  std::fill(std::copy(plan.merges.begin(), plan.merges.end(), merges), merges + size.num_merges,
            AttentionMerge{kNoWork, 0, 0, 0, 0});
  memory.begin(bytes_of(most), stream);
  char* device = memory.take<char>(bytes);
  buffer.send(device, bytes, stream);
  work.items = reinterpret_cast<const AttentionItem*>(device);
  work.merges = reinterpret_cast<const AttentionMerge*>(device + items_bytes);
  work.partials = of_stream<PartialMemory>(stream).get(p.value_size);
}

void DevicePlan::SharedLaunch::send(const SharedPlan& plan, int64_t num_items, int64_t most_items,
                                    const PagedAttentionParams& p, cudaStream_t stream) {
  work.num_items = grid_size(num_items);
  if (work.num_items == 0) return;
  const size_t members_bytes = Workspace::piece_bytes<int32_t>(p.num_seqs);
  const size_t bytes = members_bytes + num_items * sizeof(SharedItem);
  const size_t most_bytes = bytes_of_shared(p, most_items);
  char* host = buffer.begin(most_bytes);
  auto* items = reinterpret_cast<SharedItem*>(host + members_bytes);
  std::copy(plan.members.begin(), plan.members.end(), reinterpret_cast<int32_t*>(host));
  SharedItem none{};
  none.seq = kNoWork;
  std::fill(std::copy(plan.items.begin(), plan.items.end(), items), items + num_items, none);
  memory.begin(most_bytes, stream);
  char* device = memory.take<char>(most_bytes);
  buffer.send(device, bytes, stream);
  work.members = reinterpret_cast<const int32_t*>(device);
  work.items = reinterpret_cast<const SharedItem*>(device + members_bytes);
  work.partials = of_stream<PartialMemory>(stream).get(p.value_size);
}

}  // namespace quire::cuda
