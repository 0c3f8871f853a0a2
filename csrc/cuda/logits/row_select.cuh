// Searches through a row of logits by a block: the best of all, and the cut after which a prefix of
// the tokens, best first, ends. It is found without sorting: a radix descent over the bits of the
// logits counts, digit by digit, how much lies before the boundary.
//
// A row has a size, x(i), a key by which unsigned integers order tokens from the best, the same for
// equal x, and x_of(key).
#pragma once

#include <cstdint>

#include "cuda/device.h"

namespace quire::cuda {

constexpr int kRowThreads = 512;
constexpr int kRowWarps = kRowThreads / kWarpSize;
constexpr int32_t kNoIndexCut = INT32_MAX;
// Beyond it DigitAmounts could overflow.
constexpr int64_t kMaxRowSize = int64_t{1} << 21;

// Tokens that are kept: x > the cut's, or equal and of an index not above the cut's.
struct Cut {
  float x;
  int32_t index;

  __device__ bool keeps(float other, int32_t i) const {
    return other > x || (other == x && i <= index);
  }
};

// The better of two is the larger or, between equals, the one that comes first.
struct Best {
  float value;
  int32_t index;

  __device__ void take(float other, int32_t i) {
    if (other > value || (other == value && i < index)) {
      value = other;
      index = i;
    }
  }
};

// The best of `kLanes` lanes, a power of two, and of each of their neighbours as many.
template <int kLanes>
__device__ __forceinline__ Best best_of_lanes(Best best) {
#pragma unroll
  for (int flipped = kLanes / 2; flipped > 0; flipped /= 2) {
    const float value = __shfl_xor_sync(kFullMask, best.value, flipped);
    const int32_t index = __shfl_xor_sync(kFullMask, best.index, flipped);
    best.take(value, index);
  }
  return best;
}

// The best of all threads, which all call it.
__device__ inline Best block_best(Best best) {
  QUIRE_SHARED(float, values, kRowWarps);
  QUIRE_SHARED(int32_t, indices, kRowWarps);
  best = best_of_lanes<kWarpSize>(best);
  __syncthreads();  // an earlier result has been read
  if (threadIdx.x % kWarpSize == 0) {
    values[threadIdx.x / kWarpSize] = best.value;
    indices[threadIdx.x / kWarpSize] = best.index;
  }
  __syncthreads();
  const int warp = threadIdx.x % kRowWarps;
  return best_of_lanes<kRowWarps>({values[warp], indices[warp]});
}

// The sum over the block, the same in every thread; all threads call it.
__device__ inline uint64_t block_total(uint64_t own) {
  QUIRE_SHARED(uint64_t, totals, kRowWarps);
#pragma unroll
  for (int flipped = kWarpSize / 2; flipped > 0; flipped /= 2)
    own += __shfl_xor_sync(kFullMask, static_cast<unsigned long long>(own), flipped);
  __syncthreads();  // an earlier result has been read
  if (threadIdx.x % kWarpSize == 0) totals[threadIdx.x / kWarpSize] = own;
  __syncthreads();
  uint64_t total = 0;
  for (int warp = 0; warp < kRowWarps; ++warp) total += totals[warp];
  return total;
}

// The amount of a token when tokens are counted.
struct CountTokens {
  __device__ static uint64_t amount(float) { return 1; }

  // The sum over lanes, which all call it with the same mask.
  __device__ static uint64_t sum(uint32_t lanes, float) { return __popc(lanes); }
};

// The sum over lanes of amounts of up to 42 bits; all of them call it with the same mask.
__device__ __forceinline__ uint64_t sum_amounts(uint32_t lanes, uint64_t amount) {
  constexpr uint32_t kLow = (1u << 14) - 1;  // whose sum over a warp fits 32 bits by far
  const uint32_t low = __reduce_add_sync(lanes, static_cast<uint32_t>(amount) & kLow);
  const uint32_t middle = __reduce_add_sync(lanes, static_cast<uint32_t>(amount >> 14) & kLow);
  const uint32_t high = __reduce_add_sync(lanes, static_cast<uint32_t>(amount >> 28));
  return low + (static_cast<uint64_t>(middle) << 14) + (static_cast<uint64_t>(high) << 28);
}

constexpr int kDigitBits = 11;
constexpr int kNumDigits = 1 << kDigitBits;
constexpr uint32_t kNoDigit = kNumDigits;

// The amounts of the digits of a row, for a block. Shared memory adds 32 bits by an instruction,
// but 64 bits in a loop that threads run through one after the other, and most tokens of a row
// share a few digits. So the lanes of a warp that have a digit in common add up first, and what
// they have goes to three pieces of 16 bits, which hold the sums of 2^16 warps.
struct DigitAmounts {
  static constexpr int kPieces = 3;
  static constexpr int kPieceBits = 16;

  uint32_t pieces[kPieces][kNumDigits];

  // Of all threads.
  __device__ void clear() {
    for (int i = threadIdx.x; i < kPieces * kNumDigits; i += kRowThreads)
      pieces[i / kNumDigits][i % kNumDigits] = 0;
  }

  // Adds the amount of a token of each lane to its digit, unless that is kNoDigit. All lanes of a
  // warp call it.
  template <typename Measure>
  __device__ void add(uint32_t digit, float x) {
    const uint32_t lanes = __match_any_sync(kFullMask, digit);
    const uint64_t sum = Measure::sum(lanes, x);
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int first = __ffs(static_cast<int>(lanes)) - 1;
    if (digit == kNoDigit || lane != first) return;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const auto piece = static_cast<uint32_t>(sum >> i * kPieceBits) & ((1u << kPieceBits) - 1);
      if (piece != 0) atomicAdd(&pieces[i][digit], piece);
    }
  }

  __device__ uint64_t of(int digit) const {
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      sum += static_cast<uint64_t>(pieces[i][digit]) << i * kPieceBits;
    return sum;
  }
};

// The block's, one for all descents.
__device__ inline DigitAmounts& block_amounts() {
  QUIRE_SHARED(DigitAmounts, amounts, 1);
  return amounts[0];
}

// The first digit at which `before` and the amounts of all digits up to it reach the target, or
// kNumDigits; `before` becomes what lies below that digit. Of one warp.
__device__ inline int find_digit(const DigitAmounts& amounts, uint64_t target, uint64_t* before) {
  const int lane = threadIdx.x % kWarpSize;
  for (int first = 0; first < kNumDigits; first += kWarpSize) {
    uint64_t sum = amounts.of(first + lane);
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const auto below = __shfl_up_sync(kFullMask, static_cast<unsigned long long>(sum), distance);
      if (lane >= distance) sum += below;
    }
    const uint32_t reached = __ballot_sync(kFullMask, *before + sum >= target);
    const int at = reached != 0 ? __ffs(static_cast<int>(reached)) - 1 : kWarpSize;
    const auto passed =
        __shfl_sync(kFullMask, static_cast<unsigned long long>(sum), at > 0 ? at - 1 : 0);
    if (at > 0) *before += passed;
    if (at < kWarpSize) return first + at;
  }
  return kNumDigits;
}

// Index of the `count`-th token, from 1, whose key is `key`; there are as many.
template <typename Row>
__device__ int32_t find_tie(const Row& row, uint32_t key, uint64_t count) {
  QUIRE_SHARED(int32_t, ties, kRowThreads);
  QUIRE_SHARED(int32_t, found, 1);
  const int32_t share = (row.size + kRowThreads - 1) / kRowThreads;
  const int32_t begin = share * static_cast<int32_t>(threadIdx.x);
  const int32_t end = begin + share < row.size ? begin + share : row.size;
  int32_t own = 0;
  for (int32_t i = begin; i < end; ++i) own += Row::key(row.x(i)) == key;
  __syncthreads();
  ties[threadIdx.x] = own;
  __syncthreads();
  uint64_t before = 0;
  for (unsigned thread = 0; thread < threadIdx.x; ++thread) before += ties[thread];
  if (before < count && count <= before + own) {
    for (int32_t i = begin; i < end; ++i) {
      if (Row::key(row.x(i)) == key && ++before == count) found[0] = i;
    }
  }
  __syncthreads();
  return found[0];
}

// The cut after the shortest prefix, in order, of the tokens kept by `cut` whose amounts add up to
// the target; `cut` itself where all of them do not. All threads call it and get the same.
template <typename Measure, typename Row>
__device__ Cut prefix(const Row& row, const Cut& cut, uint64_t target) {
  DigitAmounts& amounts = block_amounts();
  QUIRE_SHARED(unsigned long long, shared_before, 1);
  QUIRE_SHARED(int32_t, shared_digit, 1);
  uint64_t before = 0;
  uint32_t known = 0;  // high bits of the boundary's key
  for (int shift = 32 - kDigitBits; true; shift -= kDigitBits) {
    const int low = shift > 0 ? shift : 0;
    const uint32_t known_mask = shift + kDigitBits >= 32 ? 0u : ~0u << (shift + kDigitBits);
    __syncthreads();
    amounts.clear();
    __syncthreads();
    for (int32_t first = 0; first < row.size; first += kRowThreads) {
      const int32_t i = first + static_cast<int32_t>(threadIdx.x);
      float x = 0.f;
      uint32_t digit = kNoDigit;
      if (i < row.size) {
        x = row.x(i);
        const uint32_t key = Row::key(x);
        if (cut.keeps(x, i) && ((key ^ known) & known_mask) == 0)
          digit = (key & ~known_mask) >> low;
      }
      amounts.add<Measure>(digit, x);
    }
    __syncthreads();
    if (threadIdx.x < kWarpSize) {
      const int digit = find_digit(amounts, target, &before);
      if (threadIdx.x == 0) {
        shared_digit[0] = digit;
        shared_before[0] = before;
      }
    }
    __syncthreads();
    if (shared_digit[0] == kNumDigits) return cut;
    before = shared_before[0];
    known |= static_cast<uint32_t>(shared_digit[0]) << low;
    if (low == 0) break;
  }
  // Tokens of the boundary's key weigh the same; as many of them as are still wanted, in order.
  const float x = Row::x_of(known);
  const uint64_t each = Measure::amount(x);
  const uint64_t wanted = (target - before + each - 1) / each;
  const uint64_t present = amounts.of(shared_digit[0]) / each;
  if (wanted == present) return {x, kNoIndexCut};
  return {x, find_tie(row, known, wanted)};
}

}  // namespace quire::cuda
