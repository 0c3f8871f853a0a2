// How the sums of a linear layer's sections become one (linear.cuh): those of a part in order, then
// parts as neighbours in a binary tree, ((p0 + p1) + (p2 + p3)) + ..., as ranks add theirs up.
#pragma once

#include "cuda/linear/sections.h"
#include "cuda/linear/split_memory.h"
#include "cuda/linear/tile.cuh"

namespace quire::cuda {

// Sums that wait for their neighbour while the next ones are made: of 4, 2 and 1 parts.
constexpr int kTreeLevels = 3;

__device__ __forceinline__ float4 operator+(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// The sums of a section where a thread leaves its own and finds those of its number in others: the
// four of a product lie together.
template <typename Shape>
__device__ __forceinline__ float4* section_sums(int64_t section, const SplitResults& results) {
  constexpr int64_t kElements = Shape::kFeatures * Shape::kRows;
  static_assert(kElements == int64_t{Shape::kProducts} * 4 * Shape::kThreads);
  return reinterpret_cast<float4*>(results.sums + section * kElements) + threadIdx.x;
}

// Memory of a block that walks several parts.
template <typename Shape>
constexpr int64_t kTreeElements = int64_t{kTreeLevels} * Shape::kFeatures * Shape::kRows;

// Adds the sum of a part to those that wait for it, and leaves the result there unless it is the
// last, which then is the sum of all. The lower levels of the tree lie in `near`, others in `far`;
// a thread reads there what it has written itself.
template <typename Shape>
__device__ void add_to_tree(LinearSums<Shape>& total, int part, bool is_last, float* near,
                            float* far) {
  constexpr int64_t kLevel = int64_t{Shape::kProducts} * Shape::kThreads;
  const auto of_level = [&](int level) {
    return reinterpret_cast<float4*>(level < Shape::kSharedLevels ? near : far) + level * kLevel +
           threadIdx.x;
  };
  int level = 0;
  for (; part % 2 == 1; part /= 2, ++level) {
    const float4* before = of_level(level);
#pragma unroll
    for (int i = 0; i < Shape::kProducts; ++i)
      total.set(i, before[i * Shape::kThreads] + total.get(i));
  }
  if (is_last) return;
  float4* own = of_level(level);
#pragma unroll
  for (int i = 0; i < Shape::kProducts; ++i) own[i * Shape::kThreads] = total.get(i);
}

// The same of four sums in registers, where a loop over levels would lie in local memory.
struct TreeOfFours {
  float4 of_one{}, of_two{}, of_four{};  // parts

  __device__ __forceinline__ float4 add(float4 total, int part) {
    if (part % 2 == 0) return of_one = total;
    total = of_one + total;
    if (part / 2 % 2 == 0) return of_two = total;
    total = of_two + total;
    if (part / 4 % 2 == 0) return of_four = total;
    return of_four + total;
  }
};

// Leaves the block's sums for others. Returns whether it is the last of its tile.
template <typename Shape>
__device__ bool leave_section(const LinearSums<Shape>& sums, int tile, int section,
                              int num_sections, const SplitResults& results) {
  QUIRE_SHARED(int, is_last, 1);
  auto* own = section_sums<Shape>(int64_t{tile} * num_sections + section, results);
#pragma unroll
  for (int i = 0; i < Shape::kProducts; ++i) own[i * Shape::kThreads] = sums.get(i);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const int before = static_cast<int>(atomicAdd(&results.arrivals[tile], 1u));
    is_last[0] = before == num_sections - 1;
    if (is_last[0] != 0) results.arrivals[tile] = 0;  // for the next launch
  }
  __syncthreads();
  if (is_last[0] == 0) return false;
  __threadfence();
  return true;
}

// Returns four sums of a tile, of those that its blocks left. `kIsCut`: of several parts.
template <typename Shape, bool kIsCut>
__device__ float4 merge_sections(int tile, int product, int num_sections, int part_sections,
                                 const SplitResults& results) {
  // Sections that are loaded together, so that their latencies overlap.
  constexpr int kAtOnce = 8;
  constexpr int64_t kSection = int64_t{Shape::kProducts} * Shape::kThreads;
  const float4* from =
      section_sums<Shape>(int64_t{tile} * num_sections, results) + product * Shape::kThreads;
  TreeOfFours tree;
  float4 total{}, sum{};
  int part = 0, of_its_part = 0;
  for (int first = 0; first < num_sections; first += kAtOnce) {
    float4 loaded[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      if (first + j < num_sections) loaded[j] = __ldcg(&from[(first + j) * kSection]);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j >= num_sections) break;
      sum = sum + loaded[j];
      if (kIsCut && ++of_its_part == part_sections) {
        total = tree.add(sum, part++);
        sum = {};
        of_its_part = 0;
      }
    }
  }
  return kIsCut ? total : sum;
}

}  // namespace quire::cuda
