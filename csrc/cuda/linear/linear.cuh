// A linear layer whose rows have the same bits in every batch: out^T = weight x^T.
//
// A library picks its algorithm by the number of rows, so that a token's bits depend on the rest of
// the batch. Here every element of the result is one sum of a fixed order: K is cut into parts, as
// ranks share it, and each part into the sections of sections.h; a section is summed from zero, in
// steps of 16 by the tensor core; the sections of a part are added in order in float32, parts as
// neighbours in a binary tree (merge.cuh), then the bias, and the result is rounded once. Weights
// are the operand of 16 rows and rows of x that of 8 columns, whatever their number; columns of a
// matrix product do not touch each other. How large a tile a block takes changes no sum, and
// neither does whether a block walks all sections of its tile or one, with the block that arrives
// last adding up what the others left.
//
// Few rows are bound by reading the weights: sections are spread over blocks, each with a deep
// pipeline of asynchronous copies. Many rows take a larger tile and all of its sections.
#pragma once

#include "cuda/launch.h"
#include "cuda/linear/merge.cuh"
#include "cuda/linear/tile.cuh"

namespace quire::cuda {

// The work of each block: row tiles are next to each other, since they read the same weights,
// then sections, then tiles of features.
struct LinearGrid {
  int row_tiles;
  int num_tiles;
  int section_steps;
  int num_parts;
  int part_steps;
  int part_sections;
  bool is_split;  // a block for each section
};

// A tile of the result, or one section of its sums.
struct TilePlace {
  int row_tile;
  int section;
  int feature_tile;

  __device__ TilePlace(const LinearGrid& grid, int num_sections, int work)
      : row_tile(work % grid.row_tiles),
        section(work / grid.row_tiles % num_sections),
        feature_tile(work / grid.row_tiles / num_sections) {}
};

template <typename T>
bool is_aligned_operand(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % Pack<T>::kSize == 0;
}

// Whether both operands may be copied 16 bytes at a time.
template <typename T>
bool is_aligned_call(const LinearParams& p) {
  return p.in_features / p.num_parts % Pack<T>::kSize == 0 &&
         is_aligned_operand<T>(p.x, p.x_stride) && is_aligned_operand<T>(p.weight, p.weight_stride);
}

// Elements of a row of n as they are, four at a time.
template <int kCount>
__device__ __forceinline__ void store_floats(float* row, int64_t begin, int64_t n,
                                             const float (&values)[kCount]) {
#pragma unroll
  for (int first = 0; first < kCount; first += Pack<float>::kSize) {
    float four[Pack<float>::kSize];
#pragma unroll
    for (int i = 0; i < Pack<float>::kSize; ++i) four[i] = values[first + i];
    store_pack(row, begin + first, n, four);
  }
}

// Puts four sums of the calling thread where the tile is written from: there a row's features lie
// side by side.
template <typename Shape>
__device__ __forceinline__ void put_result(const float4& four, int product, int first_feature,
                                           int first_row, float* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int feature = first_feature + product / Shape::kRowTiles * 16 + lane / 4;
  const int row = first_row + product % Shape::kRowTiles * 8 + lane % 4 * 2;
  float* place = shared + row * Shape::kResultStride + feature;
  place[0] = four.x;
  place[Shape::kResultStride] = four.y;
  place[8] = four.z;
  place[Shape::kResultStride + 8] = four.w;
}

// Adds the bias, rounds and writes a tile.
template <typename Shape>
__device__ void write_tile(const LinearParams& p, int64_t feature, int64_t row,
                           const float* shared) {
  using T = typename Shape::Element;
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
    const int64_t out_row = (row + i / kPacks) * p.out_stride;
    if (p.out_is_float) {
      store_floats(static_cast<float*>(p.out) + out_row, feature + at_feature, p.out_features,
                   values);
    } else {
      store_pack(static_cast<T*>(p.out) + out_row, feature + at_feature, p.out_features, values);
    }
  }
}

// Adds steps behind one barrier. Copies run ahead, up to step `end`. Of several steps none has
// products that go on by themselves.
template <typename Shape, int kCount, typename Tile>
__device__ __forceinline__ void add_at_once(Tile& tile, int& step, int end,
                                            LinearSums<Shape>& sums) {
  ptx::async_wait<Shape::kStepsAhead - kCount>();
  Shape::pass_copies();
  __syncthreads();  // the steps are there, and what the next ones overwrite has been read
  tile.begin(step, sums);
  const int next = step + Shape::kStepsAhead;
  const bool are_all = kCount > 1 && next + kCount <= end;  // then nothing is asked for each
  if (are_all) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      tile.copy(next + i);
      ptx::async_commit();
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (next + i < end) tile.copy(next + i);
      ptx::async_commit();
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) tile.multiply(step + i, sums);
  step += kCount;
}

// Adds the products of steps up to `last`.
template <typename Shape, typename Tile>
__device__ __forceinline__ void add_steps(Tile& tile, int& step, int last, int end,
                                          LinearSums<Shape>& sums) {
  if constexpr (Shape::kStepsAtOnce > 1) {
    while (step + Shape::kStepsAtOnce <= last)
      add_at_once<Shape, Shape::kStepsAtOnce>(tile, step, end, sums);
  }
  while (step < last) add_at_once<Shape, 1>(tile, step, end, sums);
  Shape::wait(sums);
}

// Adds steps up to `part_end` of a part, a section of `section_steps` after the other.
template <typename Shape, typename Tile>
__device__ __forceinline__ void add_sections(Tile& tile, int& step, int part_end, int end,
                                             int section_steps, LinearSums<Shape>& total) {
  if constexpr (Shape::kIsOneSection) {
    add_steps<Shape>(tile, step, part_end, end, total);
    total.add({});  // as a sum is added to what is zero: no zero has a sign
  } else {
    while (step < part_end) {
      LinearSums<Shape> sums;
      add_steps<Shape>(tile, step, min(step + section_steps, part_end), end, sums);
      total.add(sums);
    }
  }
}

// Begins to copy the first steps from `begin` on.
template <typename Shape, typename Tile>
__device__ __forceinline__ void begin_copies(Tile& tile, int begin, int end) {
  for (int step = begin; step < begin + Shape::kStepsAhead; ++step) {
    if (step < end) tile.copy(step);
    ptx::async_commit();
  }
}

// Computes and writes a tile of the sums from step `begin` to `end`, all in one part.
template <typename Tile>
__device__ __forceinline__ void compute_part(Tile& tile, const typename Tile::Params& p,
                                             int64_t feature, int64_t row, int begin, int end,
                                             int section_steps, char* shared) {
  using Shape = typename Tile::Shape;
  LinearSums<Shape> total;
  int step = begin;
  begin_copies<Shape>(tile, step, end);
  add_sections<Shape>(tile, step, end, end, section_steps, total);
  __syncthreads();  // all are done with the stages
  auto* result = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < Shape::kProducts; ++i)
    put_result<Shape>(total.get(i), i, tile.first_feature(), tile.first_row(), result);
  __syncthreads();  // the result is there
  write_tile<Shape>(p, feature, row, result);
}

// Computes one tile of the result, or one section of its sums. `kIsCut`: K has several parts.
template <typename Tile, bool kIsCut>
__device__ __forceinline__ void compute_tile(const typename Tile::Params& p, const LinearGrid& grid,
                                             const SplitResults& results, int work, char* shared) {
  using Shape = typename Tile::Shape;
  const int num_parts = kIsCut ? grid.num_parts : 1;
  const int num_sections = grid.is_split ? num_parts * grid.part_sections : 1;
  const TilePlace place(grid, num_sections, work);
  int part = kIsCut ? place.section / grid.part_sections : 0;
  const int first = (place.section - part * grid.part_sections) * grid.section_steps;
  const int begin = part * grid.part_steps + first;
  const int end = grid.is_split
                      ? part * grid.part_steps + min(first + grid.section_steps, grid.part_steps)
                      : num_parts * grid.part_steps;

  Tile tile(p, int64_t{place.feature_tile} * Shape::kFeatures,
            int64_t{place.row_tile} * Shape::kRows, shared, part, first);
  LinearSums<Shape> total;
  begin_copies<Shape>(tile, begin, end);
  for (int step = begin; step < end; ++part) {
    const int part_end = kIsCut ? min((part + 1) * grid.part_steps, end) : end;
    total = {};
    add_sections<Shape>(tile, step, part_end, end, grid.section_steps, total);
    if (kIsCut && !grid.is_split)
      add_to_tree(total, part, part_end == end,
                  reinterpret_cast<float*>(shared + Shape::kStages * Shape::kStageBytes),
                  results.sums + blockIdx.x * kTreeElements<Shape>);
  }
  // Found again: kept meanwhile it would take registers of the sums.
  ptx::forget(work);
  const TilePlace own(grid, num_sections, work);
  auto* result = reinterpret_cast<float*>(shared);
  const int first_feature = tile.first_feature();
  const int first_row = tile.first_row();
  if (grid.is_split) {
    const int index = own.feature_tile * grid.row_tiles + own.row_tile;
    if (!leave_section(total, index, own.section, num_sections, results)) return;
#pragma unroll 1
    for (int i = 0; i < Shape::kProducts; ++i)
      put_result<Shape>(
          merge_sections<Shape, kIsCut>(index, i, num_sections, grid.part_sections, results), i,
          first_feature, first_row, result);
  } else {
    __syncthreads();  // all are done with the stages
#pragma unroll
    for (int i = 0; i < Shape::kProducts; ++i)
      put_result<Shape>(total.get(i), i, first_feature, first_row, result);
  }
  __syncthreads();  // the result is there
  write_tile<Shape>(p, int64_t{own.feature_tile} * Shape::kFeatures,
                    int64_t{own.row_tile} * Shape::kRows, result);
}

// Computes the tiles of the calling block.
template <typename Tile, bool kIsCut>
__device__ __forceinline__ void compute_tiles(const typename Tile::Params& p,
                                              const LinearGrid& grid, const SplitResults& results,
                                              char* shared) {
  int work = static_cast<int>(blockIdx.x);
  compute_tile<Tile, kIsCut>(p, grid, results, work, shared);
  // Where parts are added in memory that there is for so many blocks, each has several tiles.
  if constexpr (kIsCut) {
    if (grid.is_split) return;
    while ((work += static_cast<int>(gridDim.x)) < grid.num_tiles) {
      __syncthreads();  // the result has been read: the next tile's stages take its place
      compute_tile<Tile, kIsCut>(p, grid, results, work, shared);
    }
  }
}

template <typename Shape, bool kIsAligned, bool kIsCut>
__global__ void __launch_bounds__(Shape::kThreads, kIsAligned ? Shape::kBlocks : 2)
    linear_kernel(const LinearParams p, const LinearGrid grid, const SplitResults results) {
  begin_kernel();
  QUIRE_DYNAMIC_SHARED(shared);
  compute_tiles<LinearTile<Shape, kIsAligned, kIsCut>, kIsCut>(p, grid, results, shared);
}

template <typename Shape>
int64_t num_tiles(const LinearParams& p) {
  return (p.num_rows + Shape::kRows - 1) / Shape::kRows *
         ((p.out_features + Shape::kFeatures - 1) / Shape::kFeatures);
}

// Whether sections are spread over blocks: if whole tiles would leave multiprocessors without work.
template <typename Shape>
bool is_split_well(const LinearParams& p) {
  const int64_t tiles = num_tiles<Shape>(p);
  const int64_t part_length = p.in_features / p.num_parts;
  const int64_t sections =
      p.num_parts * linear_sections(p.total_features, p.total_parts, part_length).count;
  return sections > 1 && 2 * tiles < num_blocks_at_once() &&
         tiles * sections <= SplitMemory::kMaxBlocks &&
         tiles * sections * Shape::kFeatures * Shape::kRows <= SplitMemory::kElements;
}

// Starts a kernel whose blocks take all sections of their tiles, or one each.
template <typename Shape, typename Params>
void launch_tiles(void (*kernel)(Params, LinearGrid, SplitResults), const Params& p, bool is_split,
                  const SplitResults& results, cudaStream_t stream) {
  const int64_t part_length = p.in_features / p.num_parts;
  const LinearSections sections = linear_sections(p.total_features, p.total_parts, part_length);
  LinearGrid grid{};
  const int64_t tiles = num_tiles<Shape>(p);
  int64_t blocks = is_split ? tiles * p.num_parts * sections.count : tiles;
  grid.row_tiles = static_cast<int>((p.num_rows + Shape::kRows - 1) / Shape::kRows);
  grid.num_tiles = static_cast<int>(grid_size(tiles));
  grid.section_steps = static_cast<int>(sections.length / Shape::kStep);
  grid.num_parts = static_cast<int>(p.num_parts);
  grid.part_steps = static_cast<int>((part_length + Shape::kStep - 1) / Shape::kStep);
  grid.part_sections = static_cast<int>(sections.count);
  grid.is_split = is_split;
  const bool is_cut = p.num_parts > 1;
  if (is_cut && !is_split && Shape::kSharedLevels < kTreeLevels)
    blocks = std::min(blocks, results.num_elements / kTreeElements<Shape>);
  launch(kernel, grid_size(blocks), Shape::kThreads, Shape::kSharedBytes, stream, p, grid, results);
}

template <typename Shape, bool kIsAligned>
void launch_linear(const LinearParams& p, bool is_split, const SplitResults& results,
                   cudaStream_t stream) {
  const auto kernel = p.num_parts > 1 ? linear_kernel<Shape, kIsAligned, true>
                                      : linear_kernel<Shape, kIsAligned, false>;
  launch_tiles<Shape>(kernel, p, is_split, results, stream);
}

}  // namespace quire::cuda
