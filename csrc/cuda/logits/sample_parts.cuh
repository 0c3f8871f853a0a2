// What the kernels of the sampler share. A row is cut into parts, one for each block; blocks leave
// what they found of a part, and the last of a row to arrive goes on with all of it. Counts and
// weights are integers and the best of all is the same in any order, so that nothing depends on how
// a row is cut.
#pragma once

#include <cstdint>

#include "cuda/logits/row_select.cuh"
#include "cuda/vector.h"
#include "cuda/workspace.h"
#include "ops/logits.h"

namespace quire::cuda {

// Logits that a thread reads at once.
constexpr int kPackTokens = Pack<float>::kSize;
constexpr int kStepTokens = kRowThreads * kPackTokens;
// Parts have a multiple of it: half of what a block reads at once, so that more blocks share a row.
constexpr int kPartTokens = kStepTokens / 2;
constexpr int kSampleBins = 2048;
constexpr int kMaxCandidates = 2048;

// Adds to a 64-bit number that is kept as two words, since shared memory has native atomics of 32
// bits only. The thread whose addition overflows the low word adds the carry to the high one, so
// that the sum is exact in any order.
__device__ __forceinline__ void add_to_words(uint32_t* low, uint32_t* high, uint64_t amount) {
  const auto low_word = static_cast<uint32_t>(amount);
  auto high_word = static_cast<uint32_t>(amount >> 32);
  if (low_word != 0) {
    const uint32_t before = atomicAdd(low, low_word);
    if (before + low_word < before) ++high_word;
  }
  if (high_word != 0) atomicAdd(high, high_word);
}

// What tokens of each bin amount to.
struct BinAmounts {
  uint32_t low[kSampleBins];
  uint32_t high[kSampleBins];

  __device__ void add(int bin, uint64_t amount) { add_to_words(&low[bin], &high[bin], amount); }

  // Of thread `first` among `step` threads.
  __device__ void clear(int first, int step) {
    for (int bin = first; bin < kSampleBins; bin += step) low[bin] = high[bin] = 0;
  }
};

// What kernels have found out about a row.
struct SampleState {
  float max;          // of its logits
  int32_t draws;      // whether it has a token to be drawn: is usable, and not greedy
  Cut cut;            // of the tokens that a draw keeps
  int32_t first_bin;  // of the candidates, among which the cut is
  int32_t last_bin;   // below the first if the cut is known already
  uint64_t wanted;    // how many of the candidates are kept, or what those weigh
};

struct SampleWork {
  SampleState* states;       // [rows]
  BinAmounts* bins;          // [rows]
  uint64_t* candidates;      // [rows, kMaxCandidates], a key and a token id
  uint32_t* num_candidates;  // [rows], those that did not fit too
  Best* partials;            // [rows, parts]
  uint32_t* arrivals;        // [rows], zero between launches
  int64_t first_row;         // of those of this launch
  int32_t part_size;
};

class SampleMemory {
 public:
  // Of a launch; what comes after is for the next one, on the same stream.
  static constexpr int64_t kMaxRows = 256;
  static constexpr int64_t kMaxBlocks = 1024;

  SampleWork get(cudaStream_t stream) {
    if (data_ == nullptr) {
      data_ = memory_.get<char>();
      check(cudaMemsetAsync(data_, 0, kMaxRows * sizeof(uint32_t), stream), "sampler");
    }
    char* at = data_;
    SampleWork work{};
    work.arrivals = take<uint32_t>(&at, kMaxRows);
    work.num_candidates = take<uint32_t>(&at, kMaxRows);
    work.states = take<SampleState>(&at, kMaxRows);
    work.partials = take<Best>(&at, kMaxBlocks);
    work.bins = take<BinAmounts>(&at, kMaxRows);
    work.candidates = take<uint64_t>(&at, kMaxRows * kMaxCandidates);
    return work;
  }

 private:
  template <typename T>
  static T* take(char** at, int64_t count) {
    T* const piece = reinterpret_cast<T*>(*at);
    *at += count * sizeof(T);
    return piece;
  }

  static constexpr size_t kRowBytes = 2 * sizeof(uint32_t) + sizeof(SampleState) +
                                      sizeof(BinAmounts) + kMaxCandidates * sizeof(uint64_t);
  FixedMemory<kMaxRows * kRowBytes + kMaxBlocks * sizeof(Best)> memory_;
  char* data_ = nullptr;
};

// The block's part of a row.
struct Part {
  const float* logits;  // of the row
  int32_t begin, end;
};

__device__ __forceinline__ Part own_part(const SampleParams& p, const SampleWork& work) {
  const int64_t r = work.first_row + blockIdx.y;
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * work.part_size;
  const auto size = static_cast<int32_t>(p.vocab_size);
  return {p.logits + r * p.row_stride, begin, min(begin + work.part_size, size)};
}

// Calls visit(begin, logits) with kPackTokens tokens at a time, from a multiple of that; beyond the
// end of the row they are minus infinity, which no filter keeps. A thread has `kAhead` loads under
// way where addresses allow sixteen bytes.
template <int kAhead, typename Visit>
__device__ __forceinline__ void for_each_pack(const Part& part, const Visit& visit) {
  int32_t begin = part.begin + kPackTokens * static_cast<int32_t>(threadIdx.x);
  const bool aligned = is_aligned(part.logits);
  if (kAhead > 1 && aligned) {
    constexpr int32_t kReach = (kAhead - 1) * kStepTokens + kPackTokens;
    for (; begin + kReach <= part.end; begin += kAhead * kStepTokens) {
      Pack<float> packs[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        packs[i] = *reinterpret_cast<const Pack<float>*>(part.logits + begin + i * kStepTokens);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) visit(begin + i * kStepTokens, packs[i].values);
    }
  }
  for (; begin < part.end; begin += kStepTokens) {
    Pack<float> pack;
    if (aligned && begin + kPackTokens <= part.end) {
      pack = *reinterpret_cast<const Pack<float>*>(part.logits + begin);
    } else {
#pragma unroll
      for (int i = 0; i < kPackTokens; ++i)
        pack.values[i] = begin + i < part.end ? part.logits[begin + i] : -INFINITY;
    }
    visit(begin, pack.values);
  }
}

// Returns whether the block is the last of its row: then it sees what all have left. All threads
// call it.
__device__ inline bool is_last_of_row(const SampleWork& work) {
  QUIRE_SHARED(int, is_last, 1);
  __threadfence();  // for what is left without atomics
  __syncthreads();  // for what other threads have left
  if (threadIdx.x == 0) {
    const uint32_t before = atomicAdd(&work.arrivals[blockIdx.y], 1u);
    is_last[0] = before == gridDim.x - 1;
    if (is_last[0] != 0) work.arrivals[blockIdx.y] = 0;  // for the next kernel
  }
  __syncthreads();
  if (is_last[0] == 0) return false;
  __threadfence();  // for what other blocks have left
  return true;
}

// The best of a row, if the block is the last of it, which returns true. All threads call it, with
// the best of theirs.
__device__ inline bool best_of_row(const SampleWork& work, Best* best) {
  Best* const partials = work.partials + int64_t{blockIdx.y} * gridDim.x;
  const Best own = block_best(*best);
  if (threadIdx.x == 0) partials[blockIdx.x] = own;
  if (!is_last_of_row(work)) return false;
  *best = own;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += kRowThreads)
    best->take(__ldcg(&partials[i].value), __ldcg(&partials[i].index));
  *best = block_best(*best);
  return true;
}

// The sum over the threads before this one; `total` becomes that over all. All threads call it.
__device__ inline uint64_t block_before(uint64_t own, uint64_t* total) {
  QUIRE_SHARED(uint64_t, sums, kRowWarps);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int own_warp = static_cast<int>(threadIdx.x) / kWarpSize;
  uint64_t sum = own;
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const auto below = __shfl_up_sync(kFullMask, static_cast<unsigned long long>(sum), distance);
    if (lane >= distance) sum += below;
  }
  __syncthreads();  // an earlier result has been read
  if (lane == kWarpSize - 1) sums[own_warp] = sum;
  __syncthreads();
  uint64_t before = sum - own;
  *total = 0;
  for (int warp = 0; warp < kRowWarps; ++warp) {
    if (warp < own_warp) before += sums[warp];
    *total += sums[warp];
  }
  return before;
}

}  // namespace quire::cuda
