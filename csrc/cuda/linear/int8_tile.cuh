// A linear layer of int8 weights and activations (W8A8) with the bits of the CPU's: sums of
// integers are exact, and the few roundings behind them are those of docs/numerics.md.
//
// A block has a tile of features and rows, and its eight warps share K: an equal number of them
// each part. Weights go from global memory straight to the registers of the tensor core, 512 bytes
// of a panel at a time. That needs no shuffling, since the order of a sum of integers is free, and
// so is that of features: what the core takes for 16 rows are features 4 g + 2 t and 4 g + 2 t + 1,
// and for the 32 elements of K two fours of each of the panel's lines that the lanes read. Rows of
// x lie in the order that suits this (quantise_rows_kernel).
#pragma once

#include "cuda/launch.h"
#include "cuda/ptx.h"
#include "cuda/vector.h"
#include "ops/linear.h"

namespace quire::cuda {

constexpr float kSmallestNormal = 0x1p-126f;
constexpr int kInt8Warps = 8;
constexpr int kInt8Block = 64;                         // elements of K between two loads of x
constexpr int kInt8Line = kInt8Four * kPanelFeatures;  // bytes: four elements of K of a panel

// Rows in int8: parts of rows in blocks of 64 elements, with zeros at the end.
struct Int8Rows {
  int8_t* elements;  // [rows, parts, blocks of a part, 64]
  float* scales;     // [rows, parts]
  int64_t blocks;    // of a part
};

__device__ __forceinline__ float flush(float x) {
  return fabsf(x) < kSmallestNormal ? copysignf(0.f, x) : x;
}

// a b of scales, zero if it is below 2^-126 as rounded to 24 bits: to those of a denormal it may be
// rounded up.
__device__ __forceinline__ float product_of_scales(float a, float b) {
  const float product = a * b;
  if (!(product <= kSmallestNormal)) return product;
  const float lifted = a < b ? a * 0x1p64f * b : b * 0x1p64f * a;
  return lifted < kSmallestNormal * 0x1p64f ? 0.f : product;
}

// A warp quantises a part of a row. Four g of a block of 16 goes to place 4 (g % 4) + g / 4: the
// lanes read fours g % 4 together.
template <typename T>
__global__ void __launch_bounds__(kInt8Warps* kWarpSize)
    quantise_rows_kernel(const PackedLinearParams p, const Int8Rows rows) {
  begin_kernel();
  constexpr int kSize = Pack<T>::kSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t index = int64_t{blockIdx.x} * kInt8Warps + threadIdx.x / kWarpSize;
  if (index >= p.num_rows * p.num_parts) return;
  const int64_t length = p.in_features / p.num_parts;
  const T* part =
      static_cast<const T*>(p.x) + index / p.num_parts * p.x_stride + index % p.num_parts * length;
  float largest = 0.f;
  bool is_finite = true;
  for (int64_t k = lane * kSize; k < length; k += kWarpSize * kSize) {
    float x[kSize];
    load_pack(part, k, length, x);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      is_finite = is_finite && x[i] - x[i] == 0.f;
      largest = fmaxf(largest, fabsf(x[i]));
    }
  }
#pragma unroll
  for (int flipped = kWarpSize / 2; flipped > 0; flipped /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, flipped));
  float scale = largest / 127.f;
  if (scale < kSmallestNormal) scale = 0.f;
  if (__any_sync(kFullMask, !is_finite)) scale = __uint_as_float(0x7fc00000u);
  if (lane == 0) rows.scales[index] = scale;
  const float inverse = scale > 0.f ? 1.f / scale : 0.f;
  auto* fours = reinterpret_cast<uint32_t*>(rows.elements + index * rows.blocks * kInt8Block);
  for (int64_t k = lane * kSize; k < rows.blocks * kInt8Block; k += kWarpSize * kSize) {
    float x[kSize];
    load_pack(part, k, length, x);
#pragma unroll
    for (int i = 0; i < kSize; i += kInt8Four) {
      uint32_t four = 0;
#pragma unroll
      for (int j = 0; j < kInt8Four; ++j) {
        const int integer = scale > 0.f ? static_cast<int>(rintf(flush(x[i + j]) * inverse)) : 0;
        four |= (static_cast<uint32_t>(integer) & 0xff) << 8 * j;
      }
      const int64_t at = (k + i) / kInt8Four;
      fours[at / 16 * 16 + at % 4 * 4 + at % 16 / 4] = four;
    }
  }
}

// `kPanels_` panels of features by `kRowTiles_` times eight rows.
template <int kPanels_, int kRowTiles_>
struct Int8Shape {
  static constexpr int kPanels = kPanels_;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kFeatures = kPanels * static_cast<int>(kPanelFeatures);
  static constexpr int kRows = kRowTiles * 8;
  static constexpr int kThreads = kInt8Warps * kWarpSize;
  static constexpr int kSums = kPanels * 2 * kRowTiles * 4;  // of a thread
  static constexpr int kResultStride = kFeatures + 4;        // floats
  // Half of the warps leave their sums to the others.
  static constexpr int kSharedBytes = kInt8Warps / 2 * kSums * kWarpSize * 4;
  static_assert(kRows * kResultStride * 4 <= kSharedBytes);

  // Of sum j of a thread: its feature and row in the tile.
  static __device__ int feature_of(int j, int lane) {
    return j / (8 * kRowTiles) * static_cast<int>(kPanelFeatures) + lane / 4 * 4 +
           j / (4 * kRowTiles) % 2 * 2 + j % 4 / 2;
  }
  static __device__ int row_of(int j, int lane) {
    return j / 4 % kRowTiles * 8 + lane % 4 * 2 + j % 2;
  }
};

__device__ __forceinline__ int32_t add_values(int32_t a, int32_t b) {
  return a + b;
}
__device__ __forceinline__ float add_values(float a, float b) {
  return flush(a + b);
}

// Adds the sums of every second of the warps that are `distance` apart to those of its neighbour.
template <typename Shape, typename Value>
__device__ void add_neighbours(Value (&values)[Shape::kSums], int distance, char* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  auto* place = reinterpret_cast<Value*>(shared) +
                warp / (2 * distance) * Shape::kSums * kWarpSize + threadIdx.x % kWarpSize;
  __syncthreads();  // what lies there has been read
  if (warp % (2 * distance) == distance) {
#pragma unroll
    for (int j = 0; j < Shape::kSums; ++j) place[j * kWarpSize] = values[j];
  }
  __syncthreads();
  if (warp % (2 * distance) == 0) {
#pragma unroll
    for (int j = 0; j < Shape::kSums; ++j) values[j] = add_values(values[j], place[j * kWarpSize]);
  }
}

// Adds the products of blocks [begin, end) of a part to the warp's sums.
template <typename Shape>
__device__ void multiply_int8(const char* panel, int64_t panel_bytes, int64_t num_lines,
                              const int8_t* x, const int64_t (&x_rows)[Shape::kRowTiles],
                              int64_t begin, int64_t end, int32_t (&sums)[Shape::kSums]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll Shape::kRowTiles> 2 ? 1 : 2
  for (int64_t block = begin; block < end; ++block) {
    uint4 b[Shape::kRowTiles];
#pragma unroll
    for (int r = 0; r < Shape::kRowTiles; ++r)
      b[r] = *reinterpret_cast<const uint4*>(x + x_rows[r] + block * kInt8Block + lane % 4 * 16);
#pragma unroll
    for (int which = 0; which < Shape::kPanels; ++which) {
      uint4 a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t line = block * (kInt8Block / kInt8Four) + i * 4 + lane % 4;
        a[i] = {};
        if (line < num_lines)
          a[i] = *reinterpret_cast<const uint4*>(panel + which * panel_bytes + line * kInt8Line +
                                                 lane / 4 * 16);
      }
      // Without a sign and 128 more: so they are stored. What is beyond the part meets zeros.
      constexpr uint32_t kSigns = 0x80808080u;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 &low = a[2 * half], &high = a[2 * half + 1];
        const uint32_t of_features[2][4] = {
            {low.x ^ kSigns, low.y ^ kSigns, high.x ^ kSigns, high.y ^ kSigns},
            {low.z ^ kSigns, low.w ^ kSigns, high.z ^ kSigns, high.w ^ kSigns}};
#pragma unroll
        for (int t = 0; t < 2; ++t)
#pragma unroll
          for (int r = 0; r < Shape::kRowTiles; ++r) {
            const uint32_t of_rows[2] = {half == 0 ? b[r].x : b[r].z, half == 0 ? b[r].y : b[r].w};
            ptx::multiply_add(&sums[((which * 2 + t) * Shape::kRowTiles + r) * 4], of_features[t],
                              of_rows);
          }
      }
    }
  }
}

template <typename Shape, typename Out>
__global__ void __launch_bounds__(Shape::kThreads)
    int8_linear_kernel(const PackedLinearParams p, const Int8Rows rows) {
  begin_kernel();
  QUIRE_DYNAMIC_SHARED(shared);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t row_tiles = (p.num_rows + Shape::kRows - 1) / Shape::kRows;
  const int64_t first_row = blockIdx.x % row_tiles * Shape::kRows;
  const int64_t first_feature = blockIdx.x / row_tiles * Shape::kFeatures;

  const int num_parts = static_cast<int>(p.num_parts);
  const int warps = kInt8Warps / num_parts;  // of a part
  const int part = warp / warps;
  const int64_t num_lines = (p.in_features / num_parts + kInt8Four - 1) / kInt8Four;
  const int64_t part_bytes = (num_lines + 1) * kInt8Line;
  const int64_t panel_bytes = num_parts * part_bytes;
  const char* panel = static_cast<const char*>(p.weight) +
                      first_feature / kPanelFeatures * panel_bytes + part * part_bytes;
  int64_t x_rows[Shape::kRowTiles];
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    const int64_t row = min(first_row + r * 8 + lane / 4, p.num_rows - 1);
    x_rows[r] = (row * num_parts + part) * rows.blocks * kInt8Block;
  }
  int32_t sums[Shape::kSums] = {};
  multiply_int8<Shape>(panel, panel_bytes, num_lines, rows.elements, x_rows,
                       rows.blocks * (warp % warps) / warps,
                       rows.blocks * (warp % warps + 1) / warps, sums);
  int distance = 1;
  for (; distance < warps; distance *= 2) add_neighbours<Shape>(sums, distance, shared);

  float totals[Shape::kSums];
#pragma unroll
  for (int j = 0; j < Shape::kSums; ++j) {
    const int feature = Shape::feature_of(j, lane);
    const int64_t row = min(first_row + Shape::row_of(j, lane), p.num_rows - 1);
    const auto* scales = reinterpret_cast<const float*>(
        panel + feature / kPanelFeatures * panel_bytes + num_lines * kInt8Line);
    const float scale =
        product_of_scales(rows.scales[row * num_parts + part], scales[feature % kPanelFeatures]);
    totals[j] = static_cast<float>(sums[j]) * scale;
  }
  for (; distance < kInt8Warps; distance *= 2) add_neighbours<Shape>(totals, distance, shared);

  // By way of shared memory: there a row's features lie side by side.
  auto* results = reinterpret_cast<float*>(shared);
  __syncthreads();  // the last sums have been read
  if (warp == 0) {
#pragma unroll
    for (int j = 0; j < Shape::kSums; ++j)
      results[Shape::row_of(j, lane) * Shape::kResultStride + Shape::feature_of(j, lane)] =
          totals[j];
  }
  __syncthreads();
  constexpr int kSize = Pack<Out>::kSize;
  constexpr int kPacks = Shape::kFeatures / kSize;
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * kPacks; i += Shape::kThreads) {
    const int64_t row = first_row + i / kPacks;
    if (row >= p.num_rows) break;
    const int at = i % kPacks * kSize;
    float values[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const int64_t feature = first_feature + at + j;
      values[j] = results[i / kPacks * Shape::kResultStride + at + j];
      if (p.bias != nullptr && feature < p.out_features)
        values[j] = flush(values[j] + flush(p.bias[feature]));
    }
    store_pack(static_cast<Out*>(p.out) + row * p.out_stride, first_feature + at, p.out_features,
               values);
  }
}

// Quantises rows of T and multiplies them.
template <typename Shape, typename T, typename Out>
void launch_int8_linear(const PackedLinearParams& p, const Int8Rows& rows, cudaStream_t stream) {
  const int64_t parts = p.num_rows * p.num_parts;
  launch(quantise_rows_kernel<T>, grid_size((parts + kInt8Warps - 1) / kInt8Warps),
         kInt8Warps * kWarpSize, 0, stream, p, rows);
  const int64_t row_tiles = (p.num_rows + Shape::kRows - 1) / Shape::kRows;
  const int64_t feature_tiles = (p.out_features + Shape::kFeatures - 1) / Shape::kFeatures;
  launch(int8_linear_kernel<Shape, Out>, grid_size(row_tiles * feature_tiles), Shape::kThreads,
         Shape::kSharedBytes, stream, p, rows);
}

}  // namespace quire::cuda
