// Which experts each row goes to, and where its pairs with them lie.
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

// The larger of two probabilities, of equal ones that of the lower index.
__device__ __forceinline__ void keep_larger(float& value, int& index, float other, int of_other) {
  const bool takes = other > value || (other == value && of_other < index);
  value = takes ? other : value;
  index = takes ? of_other : index;
}

// A warp routes a row: probabilities as the softmax in float64, rounded, so that it matters little
// how a library computes exponentials; then the largest of them, one after the other.
template <typename T>
__global__ void __launch_bounds__(kRouteWarps* kWarpSize)
    route_experts_kernel(const RouteExpertsParams p) {
  begin_kernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t row = int64_t{blockIdx.x} * kRouteWarps + threadIdx.x / kWarpSize;
  if (row >= p.num_rows) return;
  const T* logits = static_cast<const T*>(p.logits) + row * p.logits_stride;
  const int num_experts = static_cast<int>(p.num_experts);
  const int num_picked = static_cast<int>(p.num_picked);

  float largest = -INFINITY;
  for (int e = lane; e < num_experts; e += kWarpSize) largest = fmaxf(largest, to_float(logits[e]));
#pragma unroll
  for (int flipped = kWarpSize / 2; flipped > 0; flipped /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, flipped));
  double sum = 0;
  for (int e = lane; e < num_experts; e += kWarpSize)
    sum += exp(double{to_float(logits[e])} - double{largest});
  sum = warp_sum(sum);
  // What cannot be compared, in a row of NaN, is picked last; below zero are those picked already.
  float own[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * kWarpSize + lane;
    own[i] = -2.f;
    if (e < num_experts) {
      const auto probability =
          static_cast<float>(exp(double{to_float(logits[e])} - double{largest}) / sum);
      own[i] = probability >= 0.f ? probability : -1.f;
    }
  }

  float own_weight = 0.f;  // of the pick of the lane's number
  int own_expert = 0;
  float total = 0.f;
  for (int pick = 0; pick < num_picked; ++pick) {
    float value = -2.f;
    int index = kMaxExperts;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) keep_larger(value, index, own[i], i * kWarpSize + lane);
#pragma unroll
    for (int flipped = kWarpSize / 2; flipped > 0; flipped /= 2)
      keep_larger(value, index, __shfl_xor_sync(kFullMask, value, flipped),
                  __shfl_xor_sync(kFullMask, index, flipped));
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (i * kWarpSize + lane == index) own[i] = -2.f;
    const float weight = value < 0.f ? __uint_as_float(0x7fc00000u) : value;
    total += weight;
    if (lane == pick) {
      own_weight = weight;
      own_expert = index;
    }
  }
  if (p.normalizes) own_weight /= total;
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
