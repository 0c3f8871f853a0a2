// Which experts each row goes to, and where its pairs with them lie.
#include <cfloat>

#include "core/dispatch.h"
#include "cuda/cuda_ops.h"
#include "cuda/launch.h"
#include "ops/experts.h"

namespace quire::cuda {
namespace {

constexpr int kRouteWarps = 4;
constexpr int kPerLane = kMaxExperts / kWarpSize;

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
  for (int flipped = kWarpSize / 2; flipped > 0; flipped /= 2)
    x += __shfl_xor_sync(kFullMask, x, flipped);
  return x;
}

// A score that no expert has: of those that are picked already, or that are not to be picked.
constexpr float kNoScore = -INFINITY;
// Of what cannot be compared, in a row of NaN, so that it is picked last.
constexpr float kLeastScore = -FLT_MAX;

// The larger of two scores, of equal ones that of the lower index.
__device__ __forceinline__ void keep_larger(float& value, int& index, float other, int of_other) {
  const bool takes = other > value || (other == value && of_other < index);
  value = takes ? other : value;
  index = takes ? of_other : index;
}

__device__ __forceinline__ void keep_largest_of_warp(float& value, int& index) {
#pragma unroll
  for (int flipped = kWarpSize / 2; flipped > 0; flipped /= 2)
    keep_larger(value, index, __shfl_xor_sync(kFullMask, value, flipped),
                __shfl_xor_sync(kFullMask, index, flipped));
}

// The scores of a row, of which each lane holds every 32nd, until they are picked.
struct RowScores {
  float own[kPerLane];

  // Takes the largest score of experts from `begin` to `end` out. Sets its expert.
  __device__ __forceinline__ float take(int lane, int begin, int end, int& expert) {
    float value = kNoScore;
    expert = kMaxExperts;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = i * kWarpSize + lane;
      if (e >= begin && e < end) keep_larger(value, expert, own[i], e);
    }
    keep_largest_of_warp(value, expert);
    put(lane, expert, kNoScore);
    return value;
  }

  __device__ __forceinline__ void put(int lane, int expert, float value) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (i * kWarpSize + lane == expert) own[i] = value;
  }
};

// Leaves the experts of the groups whose largest scores, one or two, have the largest sum.
__device__ void keep_groups(const RouteExpertsParams& p, int lane, RowScores& scores) {
  const int num_groups = static_cast<int>(p.num_groups);
  const int size = static_cast<int>(p.num_experts) / num_groups;
  float of_group = kNoScore;  // of the lane's number
  for (int group = 0; group < num_groups; ++group) {
    const int begin = group * size;
    int first, second;
    const float largest = scores.take(lane, begin, begin + size, first);
    float sum = largest;
    if (p.num_of_group == 2) {
      const float next = scores.take(lane, begin, begin + size, second);
      scores.put(lane, second, next);
      sum += next;
    }
    scores.put(lane, first, largest);
    if (lane == group) of_group = fmaxf(sum, kLeastScore);
  }
  uint32_t kept = 0;
  for (int pick = 0; pick < p.num_kept_groups; ++pick) {
    float value = of_group;
    int group = lane;
    keep_largest_of_warp(value, group);
    kept |= 1u << group;
    if (lane == group) of_group = kNoScore;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int group = (i * kWarpSize + lane) / size;
    if (group >= num_groups || (kept >> group & 1) == 0) scores.own[i] = kNoScore;
  }
}

// A warp routes a row: scores in float64, rounded, so that it matters little how a library computes
// exponentials; then the largest of them, one after the other. Without a bound on blocks the code
// for sm_120 spills.
template <typename T>
__global__ void __launch_bounds__(kRouteWarps* kWarpSize, 4)
    route_experts_kernel(const RouteExpertsParams p) {
  begin_kernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t row = int64_t{blockIdx.x} * kRouteWarps + threadIdx.x / kWarpSize;
  if (row >= p.num_rows) return;
  const T* logits = static_cast<const T*>(p.logits) + row * p.logits_stride;
  const int num_experts = static_cast<int>(p.num_experts);
  const int num_picked = static_cast<int>(p.num_picked);

  float largest = -INFINITY;
  double sum = 0;
  if (!p.is_sigmoid) {
    for (int e = lane; e < num_experts; e += kWarpSize)
      largest = fmaxf(largest, to_float(logits[e]));
#pragma unroll
    for (int flipped = kWarpSize / 2; flipped > 0; flipped /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, flipped));
    for (int e = lane; e < num_experts; e += kWarpSize)
      sum += exp(double{to_float(logits[e])} - double{largest});
    sum = warp_sum(sum);
  }
  const auto score_of = [&](int expert) {
    const double logit{to_float(logits[expert])};
    return static_cast<float>(p.is_sigmoid ? 1 / (1 + exp(-logit))
                                           : exp(logit - double{largest}) / sum);
  };
  RowScores scores;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * kWarpSize + lane;
    scores.own[i] = kNoScore;
    if (e < num_experts)
      scores.own[i] = fmaxf(score_of(e) + (p.bias == nullptr ? 0.f : p.bias[e]), kLeastScore);
  }
  if (p.num_groups > 1) keep_groups(p, lane, scores);

  int own_expert = 0;  // the pick of the lane's number
  for (int pick = 0; pick < num_picked; ++pick) {
    int expert;
    scores.take(lane, 0, num_experts, expert);
    if (lane == pick) own_expert = expert;
  }
  float own_weight = lane < num_picked ? score_of(own_expert) : 0.f;
  if (p.normalizes) {
    float total = 0.f;
    for (int pick = 0; pick < num_picked; ++pick) total += __shfl_sync(kFullMask, own_weight, pick);
    own_weight /= total + 1e-20f;
  }
  own_weight *= p.scale;
  int place = 0;  // in the order of experts
  for (int pick = 0; pick < num_picked; ++pick)
    place += __shfl_sync(kFullMask, own_expert, pick) < own_expert;
  if (lane < num_picked) {
    p.weights[row * num_picked + place] = own_weight;
    p.experts[row * num_picked + place] = own_expert;
  }
}

constexpr int kOrderThreads = 1024;

// One block orders all pairs: each warp has every 32nd expert, counts its pairs, learns where they
// begin, and puts them there.
__global__ void __launch_bounds__(kOrderThreads) order_experts_kernel(const OrderExpertsParams p) {
  begin_kernel();
  QUIRE_SHARED(int, counts, kMaxExperts);
  QUIRE_SHARED(int, first_tiles, kMaxExperts + 1);
  constexpr int kWarps = kOrderThreads / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int num_pairs = static_cast<int>(p.num_pairs);
  const int num_experts = static_cast<int>(p.num_experts);
  const int tile_rows = static_cast<int>(p.tile_rows);

  for (int expert = warp; expert < num_experts; expert += kWarps) {
    int count = 0;
    for (int begin = 0; begin < num_pairs; begin += kWarpSize) {
      const int pair = begin + lane;
      count += __popc(__ballot_sync(kFullMask, pair < num_pairs && p.experts[pair] == expert));
    }
    if (lane == 0) counts[expert] = count;
  }
  __syncthreads();
  if (warp == 0) {
    int position = 0, tile = 0;  // the next expert's first
    for (int begin = 0; begin < num_experts; begin += kWarpSize) {
      const int expert = begin + lane;
      const int count = expert < num_experts ? counts[expert] : 0;
      const int tiles = (count + tile_rows - 1) / tile_rows;
      int counts_so_far = count, tiles_so_far = tiles;
#pragma unroll
      for (int distance = 1; distance < kWarpSize; distance *= 2) {
        const int other_count = __shfl_up_sync(kFullMask, counts_so_far, distance);
        const int other_tiles = __shfl_up_sync(kFullMask, tiles_so_far, distance);
        if (lane >= distance) {
          counts_so_far += other_count;
          tiles_so_far += other_tiles;
        }
      }
      if (expert < num_experts) {
        p.order.offsets[expert] = position + counts_so_far - count;
        first_tiles[expert] = tile + tiles_so_far - tiles;
      }
      position += __shfl_sync(kFullMask, counts_so_far, kWarpSize - 1);
      tile += __shfl_sync(kFullMask, tiles_so_far, kWarpSize - 1);
    }
    if (lane == 0) {
      p.order.offsets[num_experts] = position;
      first_tiles[num_experts] = tile;
    }
  }
  __syncthreads();
  for (int expert = warp; expert < num_experts; expert += kWarps) {
    const int count = counts[expert];
    if (count == 0) continue;
    const int first = p.order.offsets[expert];
    for (int tile = lane; tile * tile_rows < count; tile += kWarpSize) {
      int32_t* entry = p.order.tiles + 2 * (first_tiles[expert] + tile);
      entry[0] = expert;
      entry[1] = first + tile * tile_rows;
    }
    int position = first;
    for (int begin = 0; begin < num_pairs; begin += kWarpSize) {
      const int pair = begin + lane;
      const bool is_own = pair < num_pairs && p.experts[pair] == expert;
      const uint32_t owners = __ballot_sync(kFullMask, is_own);
      if (is_own) {
        const int own = position + __popc(owners & ((1u << lane) - 1));
        p.order.rows[own] = pair / static_cast<int>(p.num_picked);
        p.order.positions[pair] = own;
      }
      position += __popc(owners);
    }
  }
  for (int tile = first_tiles[num_experts] + static_cast<int>(threadIdx.x); tile < p.num_tiles;
       tile += kOrderThreads)
    p.order.tiles[2 * tile] = -1;
}

}  // namespace

void route_experts(const RouteExpertsParams& p, cudaStream_t stream) {
  QUIRE_DISPATCH_DTYPE(
      p.dtype, T,
      launch(route_experts_kernel<T>, grid_size((p.num_rows + kRouteWarps - 1) / kRouteWarps),
             kRouteWarps * kWarpSize, 0, stream, p));
}

void order_experts(const OrderExpertsParams& p, cudaStream_t stream) {
  launch(order_experts_kernel, 1, kOrderThreads, 0, stream, p);
}

}  // namespace quire::cuda
