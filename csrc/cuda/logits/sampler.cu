// Temperature, then min-p, top-k and top-p in that order, then an exponential race over what is
// left: token by token what cpu/sampler.cpp draws.
//
// With tokens ordered by (logit descending, index ascending), each filter keeps a prefix, so one
// cut (a logit and an index) describes the result. Probabilities are summed as integers of 2^-40,
// whose sum does not depend on the order of addition.
//
// Four kernels, each with several blocks to a row where rows are few: the largest logit; what
// tokens amount to in bins; the cut (sample_filter.cuh); the race. Rows that need no filter, or
// are greedy, end at once in those that are not for them.
#include <algorithm>
#include <cstdint>

#include "core/check.h"
#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
#include "cuda/logits/sample_filter.cuh"

namespace quire::cuda {
namespace {

// Whether a logit is NaN or +inf. So is their mean then, or if not, less than that: quarters of
// finite numbers do not overflow when they are added, and -inf alone does no harm.
__device__ __forceinline__ bool has_bad(const float (&logits)[kPackTokens]) {
  float mean = logits[0] * 0.25f;
#pragma unroll
  for (int i = 1; i < kPackTokens; ++i) mean = fmaf(logits[i], 0.25f, mean);
  return !(mean < INFINITY);
}

// The largest logit, and with it whether the row is usable and which token is the greedy one.
__global__ void __launch_bounds__(kRowThreads, 2)
    sample_scan_kernel(const SampleParams p, const SampleWork work) {
  begin_kernel();
  const int64_t r = work.first_row + blockIdx.y;
  Best best{-INFINITY, INT32_MAX};
  bool bad = false;
  for_each_pack<4>(own_part(p, work), [&](int32_t begin, const float (&logits)[kPackTokens]) {
    bad |= has_bad(logits);
    const float largest = fmaxf(fmaxf(logits[0], logits[1]), fmaxf(logits[2], logits[3]));
    if (!(largest > best.value)) return;
    best = {largest, begin + kPackTokens - 1};
#pragma unroll
    for (int i = kPackTokens - 2; i >= 0; --i)
      if (logits[i] == largest) best.index = begin + i;
  });
  if (bad) best = {INFINITY, 0};
  if (has_top_k(p, r) || has_top_p(p, r)) {
    const auto first = static_cast<int>(blockIdx.x * kRowThreads + threadIdx.x);
    work.bins[blockIdx.y].clear(first, static_cast<int>(gridDim.x) * kRowThreads);
  }
  if (!best_of_row(work, &best) || threadIdx.x != 0) return;
  const bool ok = best.value < INFINITY && best.value > -INFINITY;
  p.token_ids[r] = ok ? best.index : 0;
  p.ok[r] = ok;
  SampleState& state = work.states[blockIdx.y];
  state.max = best.value;
  state.draws = ok && p.temperature[r] != 0.f;
  state.cut = first_cut(p.min_p[r]);
  work.num_candidates[blockIdx.y] = 0;
}

// The race: among exponential clocks with rates e^x, clock i rings first with probability
// softmax(x)[i]. A Philox block serves four tokens.
__global__ void __launch_bounds__(kRowThreads, 2)
    sample_draw_kernel(const SampleParams p, const SampleWork work) {
  begin_kernel();
  static_assert(kPackTokens == kPhiloxWords, "a pack has the words of one block");
  const int64_t r = work.first_row + blockIdx.y;
  const SampleState& state = work.states[blockIdx.y];
  if (state.draws == 0) return;
  const Part part = own_part(p, work);
  const Row row{part.logits, part.end, state.max, p.temperature[r]};
  const Cut cut = state.cut;
  const auto seed = static_cast<uint64_t>(p.seed[r]);
  const auto position = static_cast<uint64_t>(p.position[r]);
  const auto sequence_index = static_cast<uint32_t>(p.sequence_index[r]);
  const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  Best best{-1.f, 0};
  for_each_pack<1>(part, [&](int32_t begin, const float (&logits)[kPackTokens]) {
    float x[kPackTokens];
    bool any = false;
#pragma unroll
    for (int i = 0; i < kPackTokens; ++i) {
      x[i] = row.scaled(logits[i]);
      any |= x[i] >= cut.x;
    }
    if (!any) return;
    const uint32_t counter[4] = {static_cast<uint32_t>(begin / kPhiloxWords), sequence_index,
                                 static_cast<uint32_t>(position),
                                 static_cast<uint32_t>(position >> 32)};
    uint32_t random[kPhiloxWords];
    philox4x32(counter, key, random);
#pragma unroll
    for (int i = 0; i < kPackTokens; ++i) {
      if (!cut.keeps(x[i], begin + i)) continue;
      const float score = race(x[i], random[i]);
      if (score > best.value) best = {score, begin + i};
    }
  });
  if (best_of_row(work, &best) && threadIdx.x == 0) p.token_ids[r] = best.index;
}

}  // namespace

void sample(const SampleParams& p, cudaStream_t stream) {
  check_range("vocab_size", p.vocab_size, 0, kMaxRowSize + 1);
  if (p.num_rows == 0 || p.vocab_size == 0) return;
  SampleWork work = of_stream<SampleMemory>(stream).get(stream);
  for (; work.first_row < p.num_rows; work.first_row += SampleMemory::kMaxRows) {
    const int64_t rows = std::min(p.num_rows - work.first_row, SampleMemory::kMaxRows);
    const int64_t blocks = std::min<int64_t>(num_blocks_at_once(), SampleMemory::kMaxBlocks);
    const int64_t wanted_parts = std::max<int64_t>(1, blocks / rows);
    const int64_t tokens = (p.vocab_size + wanted_parts - 1) / wanted_parts;
    const int64_t part_size = (tokens + kPartTokens - 1) / kPartTokens * kPartTokens;
    work.part_size = static_cast<int32_t>(part_size);
    const dim3 grid(grid_size((p.vocab_size + part_size - 1) / part_size), grid_size(rows));
    launch(sample_scan_kernel, grid, kRowThreads, 0, stream, p, work);
    launch(sample_bins_kernel, grid, kRowThreads, 0, stream, p, work);
    launch(sample_select_kernel, grid, kRowThreads, 0, stream, p, work);
    launch(sample_draw_kernel, grid, kRowThreads, 0, stream, p, work);
  }
}

}  // namespace quire::cuda
