// Temperature, then min-p, top-k and top-p in that order, then an exponential race over what is
// left: token by token what cpu/sampler.cpp draws.
//
// With tokens ordered by (logit descending, index ascending), each filter keeps a prefix, so one
// cut (a logit and an index) says it all. It is found without sorting: a radix descent over the
// bits of the logits counts, digit by digit, how much lies before the boundary. Probabilities are
// summed as integers of 2^-40, whose sum does not depend on the order of addition.
#include <cstdint>

#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace quire::cuda {
namespace {

__device__ __forceinline__ uint32_t bits_of(float x) {
  return __float_as_uint(x);
}
__device__ __forceinline__ float float_of(uint32_t bits) {
  return __uint_as_float(bits);
}

}  // namespace
}  // namespace quire::cuda

#define QUIRE_NAMESPACE quire::cuda
#define QUIRE_FUNCTION __device__ __forceinline__
#define QUIRE_FMA fmaf
#include "sampling_math.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int64_t kNoIndexCut = INT64_MAX;

// Tokens that may be drawn: x > the cut's, or equal and of an index not above the cut's.
struct Cut {
  float x;
  int64_t index;

  __device__ bool keeps(float other, int64_t i) const {
    return other > x || (other == x && i <= index);
  }
};

// The better of two is the larger, of equals the one that comes first.
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

__device__ Best block_best(Best best) {
  QUIRE_SHARED(float, values, kWarps);
  QUIRE_SHARED(int32_t, indices, kWarps);
#pragma unroll
  for (int flipped = kWarpSize / 2; flipped > 0; flipped /= 2) {
    const float value = __shfl_xor_sync(kFullMask, best.value, flipped);
    const int32_t index = __shfl_xor_sync(kFullMask, best.index, flipped);
    best.take(value, index);
  }
  __syncthreads();  // an earlier result has been read
  if (threadIdx.x % kWarpSize == 0) {
    values[threadIdx.x / kWarpSize] = best.value;
    indices[threadIdx.x / kWarpSize] = best.index;
  }
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) best.take(values[warp], indices[warp]);
  return best;
}

// A row being sampled: x(i) = (logit - max) / temperature, never above 0.
struct Row {
  const float* logits;
  int32_t size;
  float max;
  float temperature;

  __device__ float x(int32_t i) const { return (logits[i] - max) / temperature; }

  // Orders tokens by descending x; the sign of zero does not count.
  __device__ static uint32_t key(float x) { return bits_of(x) & 0x7fffffffu; }
};

// What a filter adds up: tokens, or what they weigh.
struct CountTokens {
  __device__ static uint64_t amount(float) { return 1; }
};
struct WeighTokens {
  __device__ static uint64_t amount(float x) {
    return static_cast<uint64_t>(exp_negative(x) * 0x1p40f);
  }
};

constexpr int kDigitBits = 11;
constexpr int kNumDigits = 1 << kDigitBits;

// The first digit at which `before` and the amounts of all digits up to it reach the target, or
// kNumDigits; `before` becomes what lies below that digit. Of one warp.
__device__ int find_digit(const unsigned long long* amounts, uint64_t target, uint64_t* before) {
  const int lane = threadIdx.x % kWarpSize;
  for (int first = 0; first < kNumDigits; first += kWarpSize) {
    uint64_t sum = amounts[first + lane];
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
__device__ int64_t find_tie(const Row& row, uint32_t key, uint64_t count) {
  QUIRE_SHARED(int32_t, ties, kThreads);
  QUIRE_SHARED(int32_t, found, 1);
  const int32_t share = (row.size + kThreads - 1) / kThreads;
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
template <typename Measure>
__device__ Cut prefix(const Row& row, const Cut& cut, uint64_t target) {
  QUIRE_SHARED(unsigned long long, amounts, kNumDigits);
  QUIRE_SHARED(unsigned long long, shared_before, 1);
  QUIRE_SHARED(int32_t, shared_digit, 1);
  uint64_t before = 0;
  uint32_t known = 0;  // high bits of the boundary's key
  for (int shift = 32 - kDigitBits; true; shift -= kDigitBits) {
    const int low = shift > 0 ? shift : 0;
    const uint32_t known_mask = shift + kDigitBits >= 32 ? 0u : ~0u << (shift + kDigitBits);
    __syncthreads();
    for (int i = threadIdx.x; i < kNumDigits; i += kThreads) amounts[i] = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < row.size; i += kThreads) {
      const float x = row.x(i);
      const uint32_t key = Row::key(x);
      if (!cut.keeps(x, i) || ((key ^ known) & known_mask) != 0) continue;
      const uint32_t digit = (key & ~known_mask) >> low;
      atomicAdd(&amounts[digit], static_cast<unsigned long long>(Measure::amount(x)));
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
  const float x = -float_of(known);
  const uint64_t each = Measure::amount(x);
  const uint64_t wanted = (target - before + each - 1) / each;
  const uint64_t present = amounts[shared_digit[0]] / each;
  if (wanted == present) return {x, kNoIndexCut};
  return {x, find_tie(row, known, wanted)};
}

__device__ Cut filter(const SampleParams& p, const Row& row, int64_t r) {
  Cut cut{-INFINITY, -1};  // keeps every finite x
  if (p.min_p[r] > 0.f) cut = {log_of(p.min_p[r]), kNoIndexCut};
  if (p.top_k[r] > 0 && p.top_k[r] < p.vocab_size)
    cut = prefix<CountTokens>(row, cut, static_cast<uint64_t>(p.top_k[r]));
  if (p.top_p[r] < 1.f) {
    QUIRE_SHARED(unsigned long long, total, 1);
    __syncthreads();
    if (threadIdx.x == 0) total[0] = 0;
    __syncthreads();
    uint64_t own = 0;
    for (int32_t i = threadIdx.x; i < row.size; i += kThreads) {
      const float x = row.x(i);
      if (cut.keeps(x, i)) own += WeighTokens::amount(x);
    }
    atomicAdd(&total[0], static_cast<unsigned long long>(own));
    __syncthreads();
    const double target = ceil(static_cast<double>(p.top_p[r]) * static_cast<double>(total[0]));
    cut = prefix<WeighTokens>(row, cut, target > 1. ? static_cast<uint64_t>(target) : 1);
  }
  return cut;
}

// The race: of exponential clocks with rates e^x, clock i rings first with probability
// softmax(x)[i]. A Philox block serves four tokens.
__device__ int32_t draw(const SampleParams& p, const Row& row, const Cut& cut, int64_t r) {
  const auto seed = static_cast<uint64_t>(p.seed[r]);
  const auto position = static_cast<uint64_t>(p.position[r]);
  const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  Best best{-1.f, 0};
  for (int32_t begin = kPhiloxWords * static_cast<int32_t>(threadIdx.x); begin < row.size;
       begin += kPhiloxWords * kThreads) {
    const uint32_t counter[4] = {
        static_cast<uint32_t>(begin / kPhiloxWords), static_cast<uint32_t>(p.sequence_index[r]),
        static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32)};
    uint32_t random[4];
    philox4x32(counter, key, random);
#pragma unroll
    for (int word = 0; word < kPhiloxWords; ++word) {
      const int32_t i = begin + word;
      if (i >= row.size) break;
      const float x = row.x(i);
      if (cut.keeps(x, i)) best.take(race(x, random[word]), i);
    }
  }
  return block_best(best).index;
}

// A block for each row.
__global__ void __launch_bounds__(kThreads) sample_kernel(const SampleParams p) {
  const int64_t r = blockIdx.x;
  const float* logits = p.logits + r * p.row_stride;
  const auto size = static_cast<int32_t>(p.vocab_size);
  QUIRE_SHARED(int32_t, is_bad, 1);
  if (threadIdx.x == 0) is_bad[0] = 0;
  __syncthreads();
  Best best{-INFINITY, INT32_MAX};
  bool bad = false;
  for (int32_t i = threadIdx.x; i < size; i += kThreads) {
    bad |= !(logits[i] < INFINITY);  // NaN, +inf
    best.take(logits[i], i);
  }
  if (bad) is_bad[0] = 1;
  best = block_best(best);
  const bool ok = is_bad[0] == 0 && best.value > -INFINITY;
  int32_t token_id = is_bad[0] == 0 ? best.index : 0;
  if (ok && p.temperature[r] != 0.f) {
    const Row row{logits, size, best.value, p.temperature[r]};
    token_id = draw(p, row, filter(p, row, r), r);
  }
  if (threadIdx.x == 0) {
    p.token_ids[r] = token_id;
    p.ok[r] = ok;
  }
}

}  // namespace

void sample(const SampleParams& p, cudaStream_t stream) {
  launch(sample_kernel, grid_size(p.num_rows), kThreads, 0, stream, p);
}

}  // namespace quire::cuda
