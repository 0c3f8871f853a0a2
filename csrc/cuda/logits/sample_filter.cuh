// The cut that top-k and top-p make, by all blocks of a row: tokens are counted or weighed in bins,
// then those of the bin in which the cut lies are gathered, and few as they are, sorted.
#pragma once

#include "cuda/logits/sample_parts.cuh"
#include "cuda/logits/sample_row.cuh"

namespace quire::cuda {
namespace {

// Bins ascend as x descends, 1/64 of a unit wide at first and twice that with every doubling of
// 4 - x, down to -1,020: the sign, the exponent and the first bits of a float are such a scale.
__device__ __forceinline__ int bin_of(float x) {
  constexpr int kShift = 15;
  const uint32_t bin = (bits_of(fmaf(x, -0.25f, 1.f)) - bits_of(1.f)) >> kShift;
  return static_cast<int>(min(bin, static_cast<uint32_t>(kSampleBins - 1)));
}

// Adds what tokens of the part amount to: their number, or their weight.
__device__ __forceinline__ void add_part(const Part& part, const Row& row, const Cut& cut,
                                         bool weighs, BinAmounts& amounts) {
  for_each_pack<2>(part, [&](int32_t begin, const float (&logits)[kPackTokens]) {
#pragma unroll
    for (int i = 0; i < kPackTokens; ++i) {
      const float x = row.scaled(logits[i]);
      if (cut.keeps(x, begin + i)) amounts.add(bin_of(x), weighs ? WeighTokens::amount(x) : 1);
    }
  });
}

// Finds the bin of the boundary, and with it who the candidates are: those in it; if both filters
// are on, those in better bins too, among which top-p makes its cut.
__device__ void choose_bins(const SampleParams& p, int64_t r, const BinAmounts& amounts,
                            SampleState* state) {
  constexpr int kOwn = kSampleBins / kRowThreads;
  const int first = kOwn * static_cast<int>(threadIdx.x);
  const bool is_both = has_top_k(p, r) && has_top_p(p, r);
  uint64_t of_bin[kOwn];
  uint64_t own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    of_bin[i] = __ldcg(&amounts.low[first + i]) |
                static_cast<uint64_t>(__ldcg(&amounts.high[first + i])) << 32;
    own += of_bin[i];
  }
  uint64_t total = 0;
  uint64_t before = block_before(own, &total);
  const uint64_t target =
      has_top_k(p, r) ? static_cast<uint64_t>(p.top_k[r]) : top_p_target(p.top_p[r], total);
  if (threadIdx.x == 0 && total < target) {  // top-k keeps all
    state->first_bin = 0;
    state->last_bin = is_both ? kSampleBins - 1 : -1;
    state->wanted = total;
  }
  if (before >= target || before + own < target) return;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (before + of_bin[i] >= target) {
      state->first_bin = is_both ? 0 : first + i;
      state->last_bin = first + i;
      state->wanted = is_both ? target : target - before;
      break;
    }
    before += of_bin[i];
  }
}

__global__ void __launch_bounds__(kRowThreads, 2)
    sample_bins_kernel(const SampleParams p, const SampleWork work) {
  begin_kernel();
  const int64_t r = work.first_row + blockIdx.y;
  SampleState& state = work.states[blockIdx.y];
  if (state.draws == 0 || !(has_top_k(p, r) || has_top_p(p, r))) return;
  QUIRE_SHARED(BinAmounts, amounts, 1);
  amounts->clear(static_cast<int>(threadIdx.x), kRowThreads);
  __syncthreads();
  const Part part = own_part(p, work);
  const Row row{part.logits, part.end, state.max, p.temperature[r]};
  add_part(part, row, state.cut, !has_top_k(p, r), amounts[0]);
  __syncthreads();
  BinAmounts& of_row = work.bins[blockIdx.y];
  for (int bin = static_cast<int>(threadIdx.x); bin < kSampleBins; bin += kRowThreads)
    of_row.add(bin, amounts->low[bin] | static_cast<uint64_t>(amounts->high[bin]) << 32);
  if (is_last_of_row(work)) choose_bins(p, r, of_row, &state);
}

// Gathers the candidates of the part in shared memory, then behind those of other blocks.
__device__ void gather(const Part& part, const Row& row, const SampleState& state,
                       const SampleWork& work, uint64_t* list) {
  QUIRE_SHARED(uint32_t, num_own, 1);
  QUIRE_SHARED(uint32_t, place, 1);
  if (threadIdx.x == 0) num_own[0] = 0;
  __syncthreads();
  const Cut cut = state.cut;
  const int first_bin = state.first_bin;
  const int last_bin = state.last_bin;
  for_each_pack<2>(part, [&](int32_t begin, const float (&logits)[kPackTokens]) {
#pragma unroll
    for (int i = 0; i < kPackTokens; ++i) {
      const float x = row.scaled(logits[i]);
      const int bin = bin_of(x);
      if (bin < first_bin || bin > last_bin || !cut.keeps(x, begin + i)) continue;
      const uint32_t slot = atomicAdd(num_own, 1u);
      if (slot < kMaxCandidates)
        list[slot] = static_cast<uint64_t>(Row::key(x)) << 32 | static_cast<uint32_t>(begin + i);
    }
  });
  __syncthreads();
  if (threadIdx.x == 0) place[0] = atomicAdd(&work.num_candidates[blockIdx.y], num_own[0]);
  __syncthreads();
  uint64_t* const all = work.candidates + int64_t{blockIdx.y} * kMaxCandidates;
  for (uint32_t i = threadIdx.x; i < num_own[0] && place[0] + i < kMaxCandidates; i += kRowThreads)
    all[place[0] + i] = list[i];
}

// Sorts, for a power of two of numbers in shared memory, in ascending order (Batcher 1968, Sorting
// networks and their applications: the bitonic one).
__device__ void sort(uint64_t* list, int size) {
  for (int sorted = 2; sorted <= size; sorted *= 2) {
    for (int distance = sorted / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int pair = static_cast<int>(threadIdx.x); pair < size / 2; pair += kRowThreads) {
        const int low = 2 * pair - (pair & (distance - 1));
        const uint64_t a = list[low];
        const uint64_t b = list[low + distance];
        if ((a > b) != ((low & sorted) != 0)) {
          list[low] = b;
          list[low + distance] = a;
        }
      }
    }
  }
  __syncthreads();
}

// Finds the cut among all candidates of a row, as many as the list has room for.
__device__ void cut_candidates(const SampleParams& p, int64_t r, const SampleWork& work,
                               int num_candidates, uint64_t* list, SampleState* state) {
  constexpr int kOwn = kMaxCandidates / kRowThreads;
  const uint64_t* const all = work.candidates + int64_t{blockIdx.y} * kMaxCandidates;
  int size = 1;
  while (size < num_candidates) size *= 2;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kRowThreads)
    list[i] = i < num_candidates ? __ldcg(&all[i]) : ~uint64_t{0};
  const uint64_t wanted = state->wanted;
  sort(list, size);

  const bool weighs = has_top_p(p, r);
  const bool is_both = has_top_k(p, r) && weighs;
  const int num_kept = is_both && wanted < static_cast<uint64_t>(num_candidates)
                           ? static_cast<int>(wanted)
                           : num_candidates;
  const int first = kOwn * static_cast<int>(threadIdx.x);
  uint64_t amounts[kOwn];
  uint64_t own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    amounts[i] = 0;
    if (first + i < num_kept) {
      const float x = Row::x_of(static_cast<uint32_t>(list[first + i] >> 32));
      amounts[i] = weighs ? WeighTokens::amount(x) : 1;
    }
    own += amounts[i];
  }
  uint64_t total = 0;
  uint64_t before = block_before(own, &total);
  const uint64_t target = is_both ? top_p_target(p.top_p[r], total) : wanted;
  if (before >= target || before + own < target) return;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    before += amounts[i];
    if (before >= target) {
      const uint64_t last = list[first + i];
      state->cut = {Row::x_of(static_cast<uint32_t>(last >> 32)), static_cast<int32_t>(last)};
      break;
    }
  }
}

__global__ void __launch_bounds__(kRowThreads, 2)
    sample_select_kernel(const SampleParams p, const SampleWork work) {
  begin_kernel();
  const int64_t r = work.first_row + blockIdx.y;
  SampleState& state = work.states[blockIdx.y];
  if (state.draws == 0 || !(has_top_k(p, r) || has_top_p(p, r))) return;
  if (state.last_bin < state.first_bin) return;
  QUIRE_SHARED(uint64_t, list, kMaxCandidates);
  const Part part = own_part(p, work);
  const Row row{part.logits, static_cast<int32_t>(p.vocab_size), state.max, p.temperature[r]};
  gather(part, row, state, work, list);
  if (!is_last_of_row(work)) return;
  const uint32_t num_candidates = __ldcg(&work.num_candidates[blockIdx.y]);
  if (num_candidates <= kMaxCandidates) {
    cut_candidates(p, r, work, static_cast<int>(num_candidates), list, &state);
    return;
  }
  const Cut cut = cut_by_digits(p, row, r);
  if (threadIdx.x == 0) state.cut = cut;
}

}  // namespace
}  // namespace quire::cuda
