// A linear layer whose rows have the same bits in every batch: out^T = weight x^T.
//
// A library picks its algorithm by the number of rows, so that a token's bits depend on the rest of
// the batch. Here every element of the result is one sum of a fixed order: K is cut into the
// sections of sections.h; a section is summed from zero, in steps of 16 by the tensor core;
// sections are added in order in float32, then the bias, and the result is rounded once. Weights
// are the operand of 16 rows and rows of x that of 8 columns, whatever their number; columns of a
// matrix product do not touch each other. How large a tile a block takes changes no sum, and
// neither does whether a block walks all sections of its tile or one, with the block that arrives
// last adding up what the others left.
//
// Few rows are bound by reading the weights: sections are spread over blocks, each with a deep
// pipeline of asynchronous copies. Many rows take a larger tile and all of its sections.
#pragma once

#include "cuda/launch.h"
#include "cuda/linear/sections.h"
#include "cuda/linear/split_memory.h"
#include "cuda/linear/tile.cuh"

namespace quire::cuda {

// The work of each block: row tiles are next to each other, since they read the same weights,
// then sections, then tiles of features.
struct LinearGrid {
  int64_t row_tiles;
  int section_steps;
  int num_steps;
  int num_sections;
  bool is_split;  // a block for each section
};

// Leaves the block's sums for others. Returns true in the block that arrives last, which then has
// the sum of them all.
template <typename Shape>
__device__ bool merge_sections(LinearSums<Shape>& sums, int64_t tile, int section, int num_sections,
                               const SplitResults& results) {
  constexpr int64_t kElements = Shape::kFeatures * Shape::kRows;
  static_assert(kElements == int64_t{Shape::kProducts} * 4 * Shape::kThreads);
  QUIRE_SHARED(int, is_last, 1);
  // A thread's four sums of a product lie together, and are read by the thread of its number.
  auto* own =
      reinterpret_cast<float4*>(results.sums + tile * num_sections * kElements) + threadIdx.x;
  constexpr int64_t kSection = kElements / 4;
#pragma unroll
  for (int f = 0; f < Shape::kFeatureTiles; ++f)
#pragma unroll
    for (int g = 0; g < Shape::kRowTiles; ++g) {
      const float (&s)[4] = sums.of[f][g];
      own[section * kSection + (f * Shape::kRowTiles + g) * Shape::kThreads] = {s[0], s[1], s[2],
                                                                                s[3]};
    }
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
  sums = {};
#pragma unroll Shape::kSectionsAtOnce
  for (int each = 0; each < num_sections; ++each) {
#pragma unroll
    for (int f = 0; f < Shape::kFeatureTiles; ++f)
#pragma unroll
      for (int g = 0; g < Shape::kRowTiles; ++g) {
        const float4 part =
            __ldcg(&own[each * kSection + (f * Shape::kRowTiles + g) * Shape::kThreads]);
        sums.of[f][g][0] += part.x;
        sums.of[f][g][1] += part.y;
        sums.of[f][g][2] += part.z;
        sums.of[f][g][3] += part.w;
      }
  }
  return true;
}

// Adds the bias, rounds and writes a tile, by way of shared memory: there a row's features lie side
// by side.
template <typename Shape>
__device__ void write_tile(const LinearParams& p, const LinearSums<Shape>& sums, int64_t feature,
                           int64_t row, int first_feature, int first_row, float* shared) {
  using T = typename Shape::Element;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int f = 0; f < Shape::kFeatureTiles; ++f)
#pragma unroll
    for (int g = 0; g < Shape::kRowTiles; ++g)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at_row = first_row + g * 8 + lane % 4 * 2 + i % 2;
        const int at_feature = first_feature + f * 16 + lane / 4 + i / 2 * 8;
        shared[at_row * Shape::kResultStride + at_feature] = sums.of[f][g][i];
      }
  __syncthreads();
  constexpr int kPacks = Shape::kFeatures / Pack<T>::kSize;
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * kPacks; i += Shape::kThreads) {
    if (row + i / kPacks >= p.num_rows) break;
    const int at_feature = i % kPacks * Pack<T>::kSize;
    float bias[Pack<T>::kSize] = {};
    if (p.bias != nullptr)
      load_pack(static_cast<const T*>(p.bias), feature + at_feature, p.out_features, bias);
    float values[Pack<T>::kSize];
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j)
      values[j] = shared[i / kPacks * Shape::kResultStride + at_feature + j] + bias[j];
    store_pack(static_cast<T*>(p.out) + (row + i / kPacks) * p.out_stride, feature + at_feature,
               p.out_features, values);
  }
}

template <typename Shape, bool kIsAligned>
__global__ void __launch_bounds__(Shape::kThreads, kIsAligned ? Shape::kBlocks : 2)
    linear_kernel(const LinearParams p, const LinearGrid grid, const SplitResults results) {
  QUIRE_DYNAMIC_SHARED(shared);
  const int64_t row_tile = blockIdx.x % grid.row_tiles;
  const int64_t rest = blockIdx.x / grid.row_tiles;
  const int section = grid.is_split ? static_cast<int>(rest % grid.num_sections) : 0;
  const int64_t feature_tile = grid.is_split ? rest / grid.num_sections : rest;
  const int64_t row = row_tile * Shape::kRows;
  const int64_t feature = feature_tile * Shape::kFeatures;
  const int begin = section * grid.section_steps;
  const int end = grid.is_split ? min(begin + grid.section_steps, grid.num_steps) : grid.num_steps;

  LinearTile<Shape, kIsAligned> tile(p, feature, row, shared);
  LinearSums<Shape> total;
  for (int step = begin; step < begin + Shape::kStages - 1; ++step) {
    if (step < end) tile.copy(step);
    ptx::async_commit();
  }
  for (int step = begin; step < end;) {
    const int section_end = min(step + grid.section_steps, end);
    LinearSums<Shape> sums;
    for (; step < section_end; ++step) {
      ptx::async_wait<Shape::kStages - 2>();
      __syncthreads();  // the step is there, and all are done with the one before it
      const int next = step + Shape::kStages - 1;
      if (next < end) tile.copy(next);
      ptx::async_commit();
      tile.multiply(step, sums);
    }
#pragma unroll
    for (int f = 0; f < Shape::kFeatureTiles; ++f)
#pragma unroll
      for (int g = 0; g < Shape::kRowTiles; ++g)
#pragma unroll
        for (int i = 0; i < 4; ++i) total.of[f][g][i] += sums.of[f][g][i];
  }
  if (grid.is_split && !merge_sections(total, feature_tile * grid.row_tiles + row_tile, section,
                                       grid.num_sections, results))
    return;
  __syncthreads();  // all are done with the stages
  write_tile(p, total, feature, row, tile.first_feature(), tile.first_row(),
             reinterpret_cast<float*>(shared));
}

// Starts a kernel whose blocks take all sections of their tiles, or one each.
template <typename Shape, bool kIsAligned>
void launch_linear(const LinearParams& p, bool is_split, const SplitResults& results,
                   cudaStream_t stream) {
  const LinearSections sections = linear_sections(p.total_features, p.in_features);
  LinearGrid grid{};
  grid.row_tiles = (p.num_rows + Shape::kRows - 1) / Shape::kRows;
  grid.section_steps = static_cast<int>(sections.length / Shape::kStep);
  grid.num_steps = static_cast<int>((p.in_features + Shape::kStep - 1) / Shape::kStep);
  grid.num_sections = static_cast<int>(sections.count);
  grid.is_split = is_split;
  const int64_t tiles =
      grid.row_tiles * ((p.out_features + Shape::kFeatures - 1) / Shape::kFeatures);
  launch(linear_kernel<Shape, kIsAligned>, grid_size(tiles * (is_split ? sections.count : 1)),
         Shape::kThreads, Shape::kSharedBytes, stream, p, grid, results);
}

}  // namespace quire::cuda
